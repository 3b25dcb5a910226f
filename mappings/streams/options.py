"""Mapping options that Streamr and reactive-streams-io share: streams, reply addresses, idle timeout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.options import FAILED, InvalidMapperOption, Option, OptionProblem
from mappings.placeholders.address import AddressPattern, InvalidPattern
from mappings.streams.stream_id import LAST_PARTITION, LONGEST_STREAM_ID, POLICIES, THINGS

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,8})(?P<unit>[smhd])", re.ASCII)
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|\A/|//|/\Z")
"""Invalid in stream IDs: control characters, unpaired surrogates, and empty parts of the path."""


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """One stream: its number of partitions, and the policy with its permissions."""

    partitions: int
    policy: EntityId


def whole_number(value: object, least: int, most: int) -> int | None:
    """Return the value if it is a whole number from `least` to `most`; else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def _streams(value: object) -> dict[str, StreamDefinition]:
    if not isinstance(value, dict):
        raise InvalidMapperOption(
            OptionProblem((), value, "an object that maps each stream ID to an object with policyId and partitions")
        )
    problems: list[OptionProblem] = []
    found: dict[str, StreamDefinition] = {}
    for name, about in value.items():
        if not _is_stream(name):
            expected = (
                f"an ID of 1 to {LONGEST_STREAM_ID} bytes that does not begin with '{THINGS}' or '{POLICIES}', without"
                " control characters and without empty parts between slashes"
            )
            problems.append(OptionProblem((name,), name, expected))
        elif not isinstance(about, dict):
            problems.append(OptionProblem((name,), about, "an object with policyId and partitions"))
        else:
            found[name] = _stream(name, about, problems)
    if problems:
        raise InvalidMapperOption(*problems)
    return found


def _is_stream(name: str) -> bool:
    if not name or _UNFIT.search(name) is not None or name.startswith((THINGS, POLICIES)):
        return False
    return len(name.encode()) <= LONGEST_STREAM_ID


def _stream(name: str, about: Mapping[str, Any], problems: list[OptionProblem]) -> StreamDefinition:
    """Read a stream; problems are added to `problems`."""
    unknown = about.keys() - {"partitions", "policyId"}
    problems += [OptionProblem((name, member), about[member], "partitions or policyId") for member in sorted(unknown)]
    written = about.get("partitions", 1)
    if (partitions := whole_number(written, 1, LAST_PARTITION + 1)) is None:
        problems.append(OptionProblem((name, "partitions"), written, f"a whole number from 1 to {LAST_PARTITION + 1}"))
    written = about.get("policyId")
    policy = parse_entity_id(EntityType.POLICY, written) if isinstance(written, str) else None
    if policy is None:
        problems.append(OptionProblem((name, "policyId"), written, "the id of a policy, 'namespace:name'"))
        policy = EntityId(EntityType.POLICY, "", "")
    return StreamDefinition(partitions or 1, policy)


def _pattern(value: object) -> AddressPattern:
    if not isinstance(value, str) or not value:
        raise InvalidMapperOption(OptionProblem((), value, "an address pattern, such as streamr/*/res"))
    try:
        return AddressPattern(value)
    except InvalidPattern as error:
        raise InvalidMapperOption(
            OptionProblem((), value, "an address pattern, such as streamr/*/res", FAILED, str(error))
        ) from error


def _duration(value: object) -> float:
    if (seconds := whole_number(value, 1, 999_999_999)) is not None:
        return float(seconds)
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)) is not None:
        return float(int(found["count"]) * _SECONDS[found["unit"]])
    raise InvalidMapperOption(
        OptionProblem((), value, "a number of seconds, or a number with a unit of s, m, h or d, such as '90m'")
    )


STREAMS = Option(
    "streams",
    _streams,
    "The streams, by ID. Each has `policyId`, the policy that grants READ and WRITE on the resource `stream:/<id>`, and"
    " `partitions` from 1 to 256 (default: 1).",
    {"tank-9": {"partitions": 4, "policyId": "acme.site:tanks"}},
    {},
)

REPLY_ADDRESS_PATTERN = Option(
    "replyAddressPattern",
    _pattern,
    "The allowed reply addresses: `*` matches any text without slashes, `**` at the end matches any text. Default: "
    "all addresses that begin with the reply-target's address up to its first placeholder.",
    "streamr/*/res",
)

SESSION_IDLE_TIMEOUT = Option(
    "sessionIdleTimeout",
    _duration,
    "How long a session over a broker lasts without a request: seconds, or a number with a unit of s, m, h or d.",
    "30m",
    "1h",
)
