"""Options of the reactive-streams-io mapper: publishers, and limits of clients.

`OPTIONS` is the table for documentation and validation; `read_rsio` converts a definition's options to `RsioOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mappings.options import InvalidMapperOption, Option, OptionProblem, address, flag, read_options
from mappings.placeholders.address import AddressPattern
from mappings.placeholders.template import Template
from mappings.reactive_streams_io.frames import Extension
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.streams.options import REPLY_ADDRESS_PATTERN, SESSION_IDLE_TIMEOUT, STREAMS, StreamDefinition

MAX_ELEMENT_SIZE = 64 << 20
MAX_PART_SIZE = 65_535
MAX_INGEST_NAMES = 16
MAX_NAME_LENGTH = 256
"""Characters of a name that is ingested."""


@dataclass(frozen=True, slots=True)
class RsioOptions:
    """A definition's options. `reply_addresses` of None: those of the source's reply-target."""

    has_test_publishers: bool = False
    extensions: frozenset[Extension] = frozenset(Extension)
    limits: EndpointLimits = field(default_factory=EndpointLimits)
    streams: Mapping[str, StreamDefinition] = field(default_factory=dict)
    reply_addresses: AddressPattern | None = None
    allows_unreliable: bool = False
    ingest: tuple[str, ...] = ()
    """The names that the service subscribes to at each client."""
    ingest_reply: Template | None = None
    """The reply address of commands in these streams; None: no responses."""


def read_rsio(written: Mapping[str, Any]) -> RsioOptions:
    """The options of a definition. Raises InvalidMapperOptions, which names every problem at once."""
    found = read_options(OPTIONS, written)
    return RsioOptions(
        has_test_publishers=found["tck"],
        extensions=found["extensions"],
        limits=EndpointLimits(element=found["elementLimit"], part=found["partLimit"], idle=found["sessionIdleTimeout"]),
        streams=found["streams"],
        reply_addresses=found["replyAddressPattern"],
        allows_unreliable=found["allowUnreliable"],
        ingest=found["ingest"],
        ingest_reply=found["ingestReplyAddress"],
    )


def _extensions(value: object) -> frozenset[Extension]:
    known = {extension.name.lower(): extension for extension in Extension}
    if not isinstance(value, list | tuple):
        raise InvalidMapperOption(OptionProblem((), value, f"a list of extensions, each one of: {', '.join(known)}"))
    problems = [
        OptionProblem((number,), each, f"one of: {', '.join(known)}")
        for number, each in enumerate(value)
        if not isinstance(each, str) or each not in known
    ]
    if problems:
        raise InvalidMapperOption(*problems)
    return frozenset(known[each] for each in value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_INGEST_NAMES:
        raise InvalidMapperOption(OptionProblem((), value, f"a list of at most {MAX_INGEST_NAMES} names"))
    problems = [
        OptionProblem((number,), each, f"a unique name of 1 to {MAX_NAME_LENGTH} characters")
        for number, each in enumerate(value)
        if not isinstance(each, str) or not 1 <= len(each) <= MAX_NAME_LENGTH or each in value[:number]
    ]
    if problems:
        raise InvalidMapperOption(*problems)
    return tuple(value)


def _byte_count(most: int) -> Any:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise InvalidMapperOption(OptionProblem((), value, f"a number of bytes from 1 to {most}"))
        return value

    return read


OPTIONS = (
    Option(
        "extensions",
        _extensions,
        "The extensions that are offered to clients: `resume`, `keepalive`, `sequence`.",
        ["keepalive", "sequence"],
        ["resume", "keepalive", "sequence"],
    ),
    replace(
        STREAMS,
        description="The streams that clients can subscribe to, by ID, as for Streamr. Each has `policyId`, the policy that"
        " grants READ on the resource `stream:/<id>`, and `partitions`.",
    ),
    replace(REPLY_ADDRESS_PATTERN, example="rsio/*/down"),
    replace(
        SESSION_IDLE_TIMEOUT,
        description="How long a session that does not use keepalive lasts without a message: seconds, or a number "
        "with a unit of s, m, h or d.",
        default="10m",
    ),
    Option(
        "elementLimit",
        _byte_count(MAX_ELEMENT_SIZE),
        "The size of the largest element, in bytes. A larger element ends its stream: with the error 413, or with a cancel "
        "if the client has sent the element.",
        1 << 20,
        16 << 20,
    ),
    Option(
        "partLimit",
        _byte_count(MAX_PART_SIZE),
        "The size of one part of a split element, in bytes.",
        16_384,
        MAX_PART_SIZE,
    ),
    Option(
        "allowUnreliable",
        flag,
        "Whether sessions are allowed over a source with `qos` 0, where messages can be lost.",
        True,
        False,
    ),
    Option(
        "ingest",
        _names,
        "Names. For each name, the service subscribes to the publisher `ingest/<name>` of each client. Each element "
        "is a command of the Ditto protocol, which the service carries out.",
        ["telemetry"],
        [],
    ),
    Option(
        "ingestReplyAddress",
        address,
        "The address for responses in the Ditto protocol to ingested commands that have `response-required: true`: a "
        "template over the headers of the response, as in a reply-target. Default: no responses.",
        "answers/{{ header:device }}",
    ),
    Option(
        "tck",
        flag,
        "Whether the test publishers `tck/range`, `tck/never`, `tck/fail`, `tck/fixed` and `tck/big` are offered.",
        True,
        False,
    ),
)
