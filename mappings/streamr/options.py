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

from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.options import FAILED, Option, OptionProblem, OptionRefused, flag, read_options
from mappings.placeholders.address import AddressPattern, PatternRefused
from mappings.streamr.access import ANONYMOUS
from mappings.streamr.errors import LONGEST_STREAM
from mappings.streamr.frames import ErrorPayload, FrameStyle
from mappings.streamr.requests import LAST_PARTITION
from mappings.streamr.streams import POLICIES, THINGS, KeyHash

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,8})(?P<unit>[smhd])", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}", re.ASCII)
_SHA_256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|\A/|//|/\Z")
"""Invalid in stream IDs: control characters, half surrogate pairs, and empty parts of the path."""

MOST_CATCH_UP = 100_000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """One stream: its number of partitions, and the policy with its permissions."""

    partitions: int
    policy: EntityId


@dataclass(frozen=True, slots=True)
class StreamrOptions:
    """A definition's options. `reply_addresses` of None: those of the source's reply-target."""

    streams: Mapping[str, StreamOptions] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    reply_addresses: AddressPattern | None = None
    idle_timeout: float = 3600
    most_caught_up: int = 1000
    style: FrameStyle = field(default_factory=FrameStyle)
    hash: KeyHash = KeyHash.MURMUR3_SWAPPED
    accept_non_json: bool = False


def read_streamr(written: Mapping[str, Any]) -> StreamrOptions:
    """The options of a definition. Raises OptionsRefused, which names every problem at once."""
    found = read_options(OPTIONS, written)
    # Elsewhere null means default; here it is a value.
    filler = None if FILLER in written and written[FILLER] is None else ""
    return StreamrOptions(
        streams=found["streams"],
        keys=found["authKeys"],
        reply_addresses=found["replyAddressPattern"],
        idle_timeout=found["sessionIdleTimeout"],
        most_caught_up=found["sessionCatchUpMax"],
        style=FrameStyle(filler=filler, errors=found["errorPayload"]),
        hash=found["hash"],
        accept_non_json=found["acceptNonJson"],
    )


def _refused(value: object, expected: str, *steps: str) -> OptionProblem:
    return OptionProblem(steps, value, expected)


def _whole(value: object, least: int, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def _streams(value: object) -> dict[str, StreamOptions]:
    if not isinstance(value, dict):
        raise OptionRefused(_refused(value, "an object: stream ID to an object with policyId and partitions"))
    problems: list[OptionProblem] = []
    found: dict[str, StreamOptions] = {}
    for name, about in value.items():
        if not _is_stream(name):
            expected = (
                f"an ID of 1 to {LONGEST_STREAM} bytes that does not begin with '{THINGS}' or '{POLICIES}', without control"
                " characters and without empty parts between slashes"
            )
            problems.append(_refused(name, expected, name))
        elif not isinstance(about, dict):
            problems.append(_refused(about, "an object with policyId and partitions", name))
        else:
            found[name] = _stream(name, about, problems)
    if problems:
        raise OptionRefused(*problems)
    return found


def _is_stream(name: str) -> bool:
    if not name or _UNFIT.search(name) is not None or name.startswith((THINGS, POLICIES)):
        return False
    return len(name.encode()) <= LONGEST_STREAM


def _stream(name: str, about: Mapping[str, Any], problems: list[OptionProblem]) -> StreamOptions:
    """Read a stream; problems are added to `problems`."""
    unknown = about.keys() - {"partitions", "policyId"}
    problems += [_refused(about[member], "partitions or policyId", name, member) for member in sorted(unknown)]
    written = about.get("partitions", 1)
    if (partitions := _whole(written, 1, LAST_PARTITION + 1)) is None:
        problems.append(_refused(written, f"a whole number from 1 to {LAST_PARTITION + 1}", name, "partitions"))
    written = about.get("policyId")
    policy = parse_entity_id(EntityType.POLICY, written) if isinstance(written, str) else None
    if policy is None:
        problems.append(_refused(written, "the id of a policy, 'namespace:name'", name, "policyId"))
        policy = EntityId(EntityType.POLICY, "", "")
    return StreamOptions(partitions or 1, policy)


def _auth_keys(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise OptionRefused(_refused(value, "an object: name to the SHA-256 of the key"))
    problems: list[OptionProblem] = []
    for name, digest in value.items():
        if _NAME.fullmatch(name) is None or name == ANONYMOUS:
            expected = f"a name of up to 100 letters, digits or the characters _ . - that is not '{ANONYMOUS}'"
            problems.append(_refused(name, expected, name))
        elif not isinstance(digest, str) or _SHA_256.fullmatch(digest) is None:
            # The value may be the key itself, so it is not quoted.
            problems.append(_refused("***", "the SHA-256 of the key, as 64 hexadecimal digits", name))
    if problems:
        raise OptionRefused(*problems)
    return {name: digest.lower() for name, digest in value.items()}


def _pattern(value: object) -> AddressPattern:
    if not isinstance(value, str) or not value:
        raise OptionRefused(_refused(value, "an address pattern, such as streamr/*/res"))
    try:
        return AddressPattern(value)
    except PatternRefused as error:
        raise OptionRefused(
            OptionProblem((), value, "an address pattern, such as streamr/*/res", FAILED, str(error))
        ) from error


def _duration(value: object) -> float:
    if (seconds := _whole(value, 1, 999_999_999)) is not None:
        return float(seconds)
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)) is not None:
        return float(int(found["count"]) * _SECONDS[found["unit"]])
    raise OptionRefused(_refused(value, "a number of seconds, or a number with a unit of s, m, h or d, such as '90m'"))


def _catch_up(value: object) -> int:
    if (messages := _whole(value, 0, MOST_CATCH_UP)) is None:
        raise OptionRefused(_refused(value, f"a whole number from 0 to {MOST_CATCH_UP}"))
    return messages


def _one_of(kinds: type[Enum]) -> Callable[[object], Enum]:
    def read(value: object) -> Enum:
        try:
            return kinds(value)
        except ValueError:
            known = ", ".join(str(kind.value) for kind in kinds)
            raise OptionRefused(_refused(value, f"one of: {known}")) from None

    return read


def _filler(value: object) -> str:
    if value != "":
        raise OptionRefused(_refused(value, "an empty string, or null"))
    return ""


FILLER = "subIdFiller"

OPTIONS = (
    Option(
        "streams",
        _streams,
        "The streams, by ID. Each has `policyId`, the policy that grants READ and WRITE on the resource `stream:/<id>`, and"
        " `partitions` from 1 to 256 (default: 1).",
        {"tank-9": {"partitions": 4, "policyId": "acme.site:tanks"}},
        {},
    ),
    Option(
        "authKeys",
        _auth_keys,
        "The keys of clients: name to the SHA-256 of the key in hexadecimal digits. A client with the key has the subject"
        " `streamr:<name>`, a client without a key has `streamr:anonymous`.",
        {"pump": "579e48f5b5b2e628fae93194811b44a24cc6114bf20f23ae51dc3fe7d4fb9256"},
        {},
    ),
    Option(
        "replyAddressPattern",
        _pattern,
        "The allowed reply addresses: `*` matches any text without slashes, `**` at the end matches any text. Default: all"
        " that begin with the reply-target's address up to its first placeholder.",
        "streamr/*/res",
    ),
    Option(
        "sessionIdleTimeout",
        _duration,
        "How long a session lasts without a request: seconds, or a number with a unit of s, m, h or d.",
        "30m",
        "1h",
    ),
    Option(
        "sessionCatchUpMax",
        _catch_up,
        "The most missed messages that a live subscription receives after a restart of the service. If it has missed more,"
        " it continues with new messages, and the client must request the missed ones.",
        100,
        1000,
    ),
    Option(
        "errorPayload",
        _one_of(ErrorPayload),
        "The payload of an error: `object`, `string` (the text alone) or `json-string` (the object as text, which all"
        " clients can show).",
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
        "acceptNonJson",
        flag,
        "Whether published messages may be any text. Otherwise they must be JSON.",
        True,
        False,
    ),
    Option(
        FILLER,
        _filler,
        "The subscription ID in frames that have none: an empty string, or null.",
        "",
        "",
    ),
)
