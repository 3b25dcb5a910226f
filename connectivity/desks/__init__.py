"""One desk for each protocol with sessions of its own; the folder is the registry, as with codecs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import cast

from connectivity.desks.base import Desk, Means

__all__ = ["Desk", "Means", "load_desk", "open_desks"]


def desk_names() -> list[str]:
    """The module names of the codecs that have a desk."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def load_desk(protocol: str) -> type[Desk] | None:
    """The desk of the codec whose module has this name; None for the many that need none."""
    if protocol not in desk_names():
        return None
    return cast(type[Desk], importlib.import_module(f"connectivity.desks.{protocol}").DESK)


def open_desks(means: Means) -> Mapping[str, Desk]:
    """A desk of each kind, by the module names of their codecs."""
    desks = {protocol: load_desk(protocol) for protocol in desk_names()}
    return {protocol: desk(means) for protocol, desk in desks.items() if desk is not None}
