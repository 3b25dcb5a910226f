"""Payload mappers, one file for each; the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil
import re
from difflib import get_close_matches
from functools import cache
from typing import cast

from mappings.mappers.base import Codec

__all__ = ["Codec", "codec_names", "load_codec", "mapper_names"]


def _module_name(name: str) -> str:
    """`ReactiveStreamsIO` → `reactive_streams_io`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


_ACRONYMS = {"io": "IO"}

_SHARED = ("base", "scripts")
"""Modules here that are no mapper."""


@cache
def codec_names() -> tuple[str, ...]:
    """Return the module names of all payload mappers.

    Listed once: without file descriptors a folder looks empty.
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _SHARED))


def mapper_names() -> list[str]:
    """The names of all wire protocols as documents write them: `raw_message` → `RawMessage`."""
    return ["".join(_ACRONYMS.get(word, word.capitalize()) for word in name.split("_")) for name in codec_names()]


def load_codec(name: str) -> Codec:
    """The codec with this name. Raises LookupError, which names the nearest known one."""
    known = codec_names()
    if (module := _module_name(name)) not in known:
        nearest = get_close_matches(module, known, 1)
        hint = f" (did you mean {nearest[0]}?)" if nearest else ""
        raise LookupError(f"found the codec {name!r}, expected one of: {', '.join(known)}{hint}")
    return cast(Codec, importlib.import_module(f"mappings.mappers.{module}").CODEC)
