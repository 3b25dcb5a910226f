"""The bytes of the same messages in three protocols: reactive-streams-io, RSocket, Ditto JSON.

The frames of reactive-streams-io and the messages of the Ditto protocol are those of the service; the sizes of RSocket
follow from its format. The overhead of transports is not included, except the length that RSocket puts before each frame
on TCP.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mappings.ids import new_subscription_id
from mappings.mappers import load_codec
from mappings.model.signals import Complete, Created, HistoryQuery, Next, Outbound, SubscriptionKind
from mappings.reactive_streams_io.elements import EventWriter
from mappings.reactive_streams_io.frames import (
    OnComplete,
    OnNext,
    OnNextPacked,
    OnSubscribe,
    RequestFrame,
    SubscribeFrame,
    encode,
)
from tests.bench.harness import FULL, Scale, events_of, thing
from tests.bench.report import Figure

RSOCKET_FRAME = 3 + 4 + 2
"""The length of the frame, the ID of the stream, type and flags."""

RSOCKET_NUMBER = 4
METADATA_LENGTH = 3
ROUTE_HEAD = 1 + 3 + 1
"""The header of a route in composite metadata: its kind, its length, the length of its text."""


class Row(NamedTuple):
    """The sizes of the same message in bytes. `ditto` is None if the Ditto protocol has no such message."""

    what: str
    rsio: float
    rsocket: float
    ditto: float | None


def rows() -> Iterator[Row]:
    """Yield the sizes of events of a sensor, of numbers, and of the frames around a stream."""
    event = events_of(thing(0), 3)[2]
    element = EventWriter(thing(0))(event)
    headers = {"correlation-id": "c-1"}
    key = new_subscription_id()
    name = f"things/{thing(0)}/history"
    following = Next(SubscriptionKind.HISTORY, key, thing(0), headers, (event,), headers)
    yield Row("an event", len(encode(OnNext(1, element))), RSOCKET_FRAME + len(element), _ditto(following))
    numbers = [struct.pack(">d", number) for number in range(100)]
    packed = len(encode(OnNextPacked(1, numbers), 8)) / len(numbers)
    yield Row("one number of an event, a hundred together", packed, RSOCKET_FRAME + 8, None)
    yield Row("the same, by itself", len(encode(OnNext(1, numbers[0]), 8)), RSOCKET_FRAME + 8, None)
    query = HistoryQuery(thing(0))
    asked = RSOCKET_FRAME + RSOCKET_NUMBER + METADATA_LENGTH + ROUTE_HEAD + len(name)
    subscribe = _asking("subscribeForPersistedEvents", {})
    yield Row("a subscribe with demand", len(encode(SubscribeFrame(name, 1, 100))), asked, subscribe)
    created = _ditto(Created(SubscriptionKind.HISTORY, key, query.entity, headers))
    yield Row("its confirmation", len(encode(OnSubscribe(1, 0))), 0, created)
    request = _asking("request", {"subscriptionId": key, "demand": 100})
    yield Row("a request", len(encode(RequestFrame(1, 100))), RSOCKET_FRAME + RSOCKET_NUMBER, request)
    yield Row(
        "the end",
        len(encode(OnComplete(1))),
        RSOCKET_FRAME,
        _ditto(Complete(SubscriptionKind.HISTORY, key, thing(0), headers)),
    )


def table() -> str:
    """Return the table of docs/internals/measurements-messages.md."""
    lines = ["| bytes of | reactive-streams-io | RSocket | Ditto JSON |", "|---|---|---|---|"]
    for row in rows():
        ditto = "–" if row.ditto is None else f"{row.ditto:g}"
        lines.append(f"| {row.what} | {row.rsio:g} | {row.rsocket:g} | {ditto} |")
    return "\n".join(lines)


def listed(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Return the table as figures, with RSocket in place of a bare client."""
    return [
        Figure(
            f"bytes of {row.what}",
            f"{row.rsio:g}",
            f"{row.rsocket:g} (RSocket)",
            "–",
            True,
            "" if row.ditto is None else f"Ditto JSON {row.ditto:g}",
        )
        for row in rows()
    ]


def _ditto(signal: Outbound) -> int:
    (message,) = load_codec("ditto").encode(signal, None)
    return len(message.payload)


def _asking(action: str, value: dict[str, object]) -> int:
    topic = f"acme.bench/{thing(0).name}/things/twin/streaming/{action}"
    document = {"topic": topic, "path": "/", "headers": {"correlation-id": "c-1"}, "value": value}
    return len(json.dumps(document, separators=(",", ":")))
