"""Options of the Streamr mapper: streams, keys of clients, and the style of replies.

`OPTIONS` is the table for documentation and validation; `read_streamr` converts a definition's options to `StreamrOptions`.
Without a definition there are only the events of things and policies (Streamr protocol, options).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mappings.options import InvalidMapperOption, Option, OptionProblem, flag, read_options
from mappings.placeholders.address import AddressPattern
from mappings.streamr.auth_keys import ANONYMOUS
from mappings.streamr.frames import ErrorPayload, FrameStyle
from mappings.streams.options import (
    REPLY_ADDRESS_PATTERN,
    SESSION_IDLE_TIMEOUT,
    STREAMS,
    StreamDefinition,
    whole_number,
)
from mappings.streams.stream_id import KeyHash

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}", re.ASCII)
_SHA_256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
MAX_CATCH_UP = 100_000


@dataclass(frozen=True, slots=True)
class StreamrOptions:
    """A definition's options. `reply_addresses` of None: those of the source's reply-target."""

    streams: Mapping[str, StreamDefinition] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    reply_addresses: AddressPattern | None = None
    idle_timeout: float = 3600
    max_catch_up: int = 1000
    style: FrameStyle = field(default_factory=FrameStyle)
    hash: KeyHash = KeyHash.MURMUR3_SWAPPED
    accept_non_json: bool = False


def read_streamr(written: Mapping[str, Any]) -> StreamrOptions:
    """The options of a definition. Raises InvalidMapperOptions, which names every problem at once."""
    found = read_options(OPTIONS, written)
    # Elsewhere null means default; here it is a value.
    filler = None if FILLER in written and written[FILLER] is None else ""
    return StreamrOptions(
        streams=found["streams"],
        keys=found["authKeys"],
        reply_addresses=found["replyAddressPattern"],
        idle_timeout=found["sessionIdleTimeout"],
        max_catch_up=found["sessionCatchUpMax"],
        style=FrameStyle(filler=filler, errors=found["errorPayload"]),
        hash=found["hash"],
        accept_non_json=found["acceptNonJson"],
    )


def _auth_keys(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidMapperOption(
            OptionProblem((), value, "an object that maps each key's name to the SHA-256 of the key")
        )
    problems: list[OptionProblem] = []
    for name, digest in value.items():
        if _NAME.fullmatch(name) is None or name == ANONYMOUS:
            expected = f"a name of up to 100 letters, digits or the characters _ . - that is not '{ANONYMOUS}'"
            problems.append(OptionProblem((name,), name, expected))
        elif not isinstance(digest, str) or _SHA_256.fullmatch(digest) is None:
            # The value may be the key itself, so it is not quoted.
            problems.append(OptionProblem((name,), "***", "the SHA-256 of the key, as 64 hexadecimal digits"))
    if problems:
        raise InvalidMapperOption(*problems)
    return {name: digest.lower() for name, digest in value.items()}


def _catch_up(value: object) -> int:
    if (messages := whole_number(value, 0, MAX_CATCH_UP)) is None:
        raise InvalidMapperOption(OptionProblem((), value, f"a whole number from 0 to {MAX_CATCH_UP}"))
    return messages


def _one_of(kinds: type[Enum]) -> Callable[[object], Enum]:
    def read(value: object) -> Enum:
        try:
            return kinds(value)
        except ValueError:
            known = ", ".join(str(kind.value) for kind in kinds)
            raise InvalidMapperOption(OptionProblem((), value, f"one of: {known}")) from None

    return read


def _filler(value: object) -> str:
    if value != "":
        raise InvalidMapperOption(OptionProblem((), value, "an empty string, or null"))
    return ""


FILLER = "subIdFiller"

OPTIONS = (
    STREAMS,
    Option(
        "authKeys",
        _auth_keys,
        "The keys of clients: an object that maps each key's name to the SHA-256 of the key, in hexadecimal digits. "
        "A client with the key has the subject `streamr:<name>`, a client without a key has `streamr:anonymous`.",
        {"pump": "579e48f5b5b2e628fae93194811b44a24cc6114bf20f23ae51dc3fe7d4fb9256"},
        {},
    ),
    REPLY_ADDRESS_PATTERN,
    SESSION_IDLE_TIMEOUT,
    Option(
        "sessionCatchUpMax",
        _catch_up,
        "The maximum number of missed messages that a live subscription receives after a restart of the service. If "
        "it has missed more messages, it continues with new ones, and the client must request the missed ones.",
        100,
        1000,
    ),
    Option(
        "errorPayload",
        _one_of(ErrorPayload),
        "The payload of an error: `object`, `string` (only the text) or `json-string` (the object as a text, which "
        "all clients can show).",
        "json-string",
        ErrorPayload.OBJECT.value,
    ),
    Option(
        "hash",
        _one_of(KeyHash),
        "How a `pkey` selects the partition: `murmur3-swapped` as in version 28; `md5` as in later services.",
        "md5",
        KeyHash.MURMUR3_SWAPPED.value,
    ),
    Option(
        "acceptNonJson", flag, "Whether published messages may be any text. Otherwise they must be JSON.", True, False
    ),
    Option(FILLER, _filler, "The subscription ID in frames that have none: an empty string, or null.", "", ""),
)
