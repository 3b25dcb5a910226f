"""Measures the cost of each frame that the service reads or writes itself, compared with a library.

    python -m tests.bench.amqp_frames

The unit is microseconds of processor time per message, without a broker or a socket: the minimum of several alternating
runs. The messages have 400 bytes and the headers of an event. The cost of the libraries' tasks, queues and futures is not
included; `tests.bench.amqp_link` measures it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import aio_pika
import pamqp.frame
from aio_pika.message import IncomingMessage
from aiormq.abc import ChannelFrame, DeliveredMessage
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from connectivity.transports.amqp.frames import (
    FRAME,
    METHOD_ID,
    pack_ack,
    pack_content,
    pack_publish,
    read_confirm,
    read_delivery,
)
from connectivity.transports.amqp.properties import pack_properties, read_properties
from tests.bench.mqtt_link import PAYLOAD

TURNS, COUNT = 7, 20_000
FRAME_MAX = 131_072
HEADERS = {
    "content-type": "application/vnd.eclipse.ditto+json",
    "correlation-id": "c-1",
    "ditto-originator": "integration:depot-7",
    "version": "2",
}
PLACE = pack_publish(1, "events", "acme.depot")
"""A link packs the method once for each address."""

DELIVER = pamqp.frame.marshal(Basic.Deliver("0", 7, False, "events", "acme.depot"), 1)
CONTENT = pack_content(1, pack_properties(HEADERS), PAYLOAD, FRAME_MAX)
HEADER_END = FRAME.size + FRAME.unpack_from(CONTENT)[2] + 1
HEADER, BODY = CONTENT[:HEADER_END], CONTENT[HEADER_END:]
CONFIRM = pamqp.frame.marshal(Basic.Ack(7, True), 1)


def our_publish() -> object:
    return PLACE + pack_content(1, pack_properties(HEADERS), PAYLOAD, FRAME_MAX)


def pika_publish() -> object:
    message = aio_pika.Message(
        PAYLOAD,
        headers=dict(HEADERS),
        content_type=HEADERS["content-type"],
        correlation_id=HEADERS["correlation-id"],
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )
    frames: list[Basic.Publish | ContentHeader | ContentBody] = [
        Basic.Publish(exchange="events", routing_key="acme.depot", mandatory=True),
        ContentHeader(properties=message.properties, body_size=len(message.body)),
        ContentBody(message.body),
    ]
    return ChannelFrame.marshall(1, frames)


def our_delivery() -> object:
    """Decode the payloads of the three frames that the demultiplexer has split."""
    consumer, tag, redelivered = read_delivery(DELIVER[FRAME.size : -1], METHOD_ID.size)
    return consumer, tag, redelivered, read_properties(HEADER[FRAME.size + 12 : -1]), BODY[FRAME.size : -1]


def pika_delivery() -> object:
    _, _, deliver = pamqp.frame.unmarshal(DELIVER)
    _, _, header = pamqp.frame.unmarshal(HEADER)
    _, _, body = pamqp.frame.unmarshal(BODY)
    assert isinstance(deliver, Basic.Deliver)
    assert isinstance(header, ContentHeader)
    assert isinstance(body, ContentBody)
    return IncomingMessage(DeliveredMessage(deliver, header, body.value, None), no_ack=False)  # type: ignore[arg-type]


def our_confirm() -> object:
    return read_confirm(CONFIRM[FRAME.size : -1], METHOD_ID.size)


def pika_confirm() -> object:
    return pamqp.frame.unmarshal(CONFIRM)


def our_ack() -> object:
    return pack_ack(1, 7)


def pika_ack() -> object:
    return pamqp.frame.marshal(Basic.Ack(7, True), 1)


STEPS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "writing a message": (our_publish, pika_publish),
    "reading a delivery": (our_delivery, pika_delivery),
    "reading a confirm": (our_confirm, pika_confirm),
    "writing an acknowledgement": (our_ack, pika_ack),
}


def cost(work: Callable[[], object]) -> float:
    """Return the microseconds of processor time of one call."""
    before = time.process_time()
    for _ in range(COUNT):
        work()
    return (time.process_time() - before) / COUNT * 1e6


def main() -> None:
    for name, (ours, theirs) in STEPS.items():
        runs = [(cost(ours), cost(theirs)) for _ in range(TURNS)]
        mine, libraries = (min(run[who] for run in runs) for who in (0, 1))
        print(f"{name:28} {mine:6.2f} µs   aio-pika {libraries:6.2f} µs   ratio {libraries / mine:5.1f}")


if __name__ == "__main__":
    main()
