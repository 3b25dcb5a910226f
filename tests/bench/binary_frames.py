"""Replays as frames of reactive-streams-io in process, from elements to the bytes of a transport.

Elements of 16 bytes are packed; elements of the size of an event are single. The comparison is the minimum for any
program: to join the elements, and to join each with its length. The memory of an idle connection is measured too.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import SubscribeReceived
from mappings.reactive_streams_io.frames import CORE, ClientHello, OnNextPacked, SubscribeFrame, encode
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from tests.bench.harness import FULL, Scale
from tests.bench.report import Figure

GOAL = 500_000
PAGE = 500
"""Elements that a feed supplies in one step."""

ELEMENTS = 400_000
ROUNDS = 5


def _server(extensions: tuple[int, ...] = ()) -> tuple[Endpoint, int]:
    """An endpoint with a stream that has unlimited demand, and this stream."""
    endpoint = Endpoint(EndpointRole.SERVER, 0.0)
    endpoint.receive(encode(ClientHello(0, extensions)), 0.0)
    (subscribed,) = endpoint.receive(encode(SubscribeFrame("x", 1, UNBOUNDED)), 0.0)[:1]
    assert isinstance(subscribed, SubscribeReceived)
    return endpoint, subscribed.stream


def _sent(elements: list[bytes], size: int) -> float:
    """The seconds to offer the elements in pages and take all bytes."""
    endpoint, stream = _server()
    endpoint.session.accept(stream, size)
    pages = [elements[place : place + PAGE] for place in range(0, len(elements), PAGE)]
    begun = time.perf_counter()
    for page in pages:
        endpoint.session.offer(stream, page)
        while endpoint.take():
            pass
    return time.perf_counter() - begun


def _joined(elements: list[bytes], size: int) -> float:
    pages = [elements[place : place + PAGE] for place in range(0, len(elements), PAGE)]
    begun = time.perf_counter()
    for page in pages:
        b"".join(page if size else [each for element in page for each in (bytes([len(element)]), element)])
    return time.perf_counter() - begun


def _read(elements: list[bytes], size: int) -> float:
    """The seconds to read packed frames, each with one page."""
    frames = [encode(OnNextPacked(1, elements[place : place + PAGE]), size) for place in range(0, len(elements), PAGE)]
    decoder = Decoder(EndpointLimits(), CORE, 0x01, {1: size})
    begun = time.perf_counter()
    found = 0
    for frame in frames:
        for read in decoder.feed(frame):
            assert isinstance(read, OnNextPacked)
            found += len(read.elements)
    taken = time.perf_counter() - begun
    assert found == len(elements)
    return taken


def _rate(measure: Callable[[list[bytes], int], float], elements: list[bytes], size: int) -> float:
    return len(elements) / statistics.median(measure(elements, size) for _ in range(ROUNDS))


def _idle_bytes(streams: int) -> float:
    """The bytes of memory of one more stream that waits for demand."""
    endpoint = Endpoint(EndpointRole.SERVER, 0.0, limits=EndpointLimits(subscriptions=streams, backlog=1 << 30))
    endpoint.receive(encode(ClientHello(0, ())), 0.0)
    gc.collect()
    tracemalloc.start()
    try:
        for subscriber in range(1, streams + 1):
            for event in endpoint.receive(encode(SubscribeFrame("things/acme:lamp-1/history", subscriber, 0)), 0.0):
                assert isinstance(event, SubscribeReceived)
                endpoint.session.accept(event.stream)
            while endpoint.take():
                pass
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / streams
    finally:
        tracemalloc.stop()


def measured(folder: Path, scale: Scale = FULL) -> list[Figure]:
    """Write packed and single elements, read packed ones, and measure the memory of an idle stream."""
    elements = scale.of(ELEMENTS, 4 * PAGE)
    small = [number.to_bytes(16, "big") for number in range(elements)]
    large = [bytes(120)] * (elements // 4)
    packed, single, read = _rate(_sent, small, 16), _rate(_sent, large, 0), _rate(_read, small, 16)
    return [
        Figure(
            "packed replay of 16-byte elements, in process",
            f"{packed:,.0f} elements/s",
            f"{_rate(_joined, small, 16):,.0f} elements/s (joined)",
            f"{GOAL:,}",
            packed >= GOAL,
            f"pages of {PAGE}; read again: {read:,.0f} elements/s",
        ),
        Figure(
            "120-byte elements singly, in process",
            f"{single:,.0f} elements/s",
            f"{_rate(_joined, large, 0):,.0f} elements/s (joined with a length)",
            "–",
            True,
            f"an idle stream takes {_idle_bytes(scale.of(1000, 100)):,.0f} bytes",
        ),
    ]
