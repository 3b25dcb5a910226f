"""Commands in streams through a TCP listener: each takes effect once and in order, for any split.

Case numbers are those of the cases for reactive-streams-io. Hexadecimal digits are bytes as they travel.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mappings.reactive_streams_io.frames import OnNext, OnSubscribe, Resume
from tests.support.in_process.reactive_streams_io import RsioHarness, definition, raw
from tests.support.in_process.service import turn
from tests.support.in_process.tcp_service import TcpService, open_tcp_service
from tests.support.wait import wait_until

WANTED = "11 10 69 6e 67 65 73 74 2f 74 65 6c 65 6d 65 74 72 79 01 80 02"
"""The subscribe of `ingest/telemetry` as number 1, with a demand of 256."""
AGAIN = "12 01 80 01"


@pytest.fixture
async def there() -> AsyncIterator[TcpService]:
    rsio_harness = await RsioHarness.filled(revisions=1)
    async with open_tcp_service(rsio_harness, mappingDefinitions=definition(ingest=["telemetry"])) as made:
        yield made


def turns(first: int, last: int) -> bytes:
    """Return frames that set the lamp to these numbers."""
    return raw(*(OnNext(1, turn(number)) for number in range(first, last + 1)))


async def has(there: TcpService, last: int) -> None:
    """The lamp was set to all numbers up to the last one, in order."""
    await wait_until(lambda: len(there.rsio_harness.values()) >= last)
    assert there.rsio_harness.values() == list(range(1, last + 1))


async def test_cases_w01_to_w04_over_a_socket_in_chunks_of_any_size(there: TcpService) -> None:
    caller = await there.greeted()
    await caller.expect(WANTED)
    caller.send(OnSubscribe(1, 0), "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d 31 01 01")
    await caller.expect("81 01 00 82 01 01 31 86 01")
    await caller.send_slowly(turns(1, 3))
    sent = turns(4, 256)
    for start in range(0, len(sent), 1009):
        caller.writer.write(sent[start : start + 1009])
        await caller.writer.drain()
    await has(there, 256)
    await caller.expect(f"{AGAIN} {AGAIN}")


async def test_frames_before_a_broken_socket_are_executed_but_half_a_frame_is_not(there: TcpService) -> None:
    caller = await there.greeted()
    await caller.expect(WANTED)
    caller.send(OnSubscribe(1, 0), turns(1, 50), turns(51, 51)[:20])
    await caller.writer.drain()
    await has(there, 50)
    await caller.leave()
    await wait_until(lambda: not there.link.peers)
    await has(there, 50)


async def test_a_session_that_is_resumed_continues_with_the_commands_that_did_not_come(there: TcpService) -> None:
    caller = await there.greeted("01 00 01 01")
    grant = await caller.take(2 + 16 + 5)
    await caller.expect(WANTED)
    caller.send(OnSubscribe(1, 0), turns(1, 100), turns(101, 101)[:30])
    await caller.writer.drain()
    await has(there, 100)
    await caller.leave()
    await wait_until(lambda: not there.link.peers)
    again = await there.greeted("01 00 01 01")
    await again.take(2 + 16 + 5)
    await again.expect(WANTED)
    again.send(Resume(grant[2:18], 1, 1))
    await again.expect("a2 65")
    again.send(turns(101, 130))
    await has(there, 130)
    assert (await again.take(2 + 16 + 5))[0] == 0xA0
    await again.expect(AGAIN)
