"""Sessions that do not keep up, and what many of them share.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import pytest

from connectivity.sessions.base import FOREVER
from connectivity.sessions.stream_source import StreamSource
from connectivity.sessions.streamr import live_subscription
from connectivity.sessions.streamr.frame_cache import FrameCache
from connectivity.store.store import Store
from connectivity.subscriptions.live_feed import LagTolerance
from mappings.ids import EntityId
from mappings.model.signals import Event
from mappings.streamr.frames import PLAIN, FrameStyle
from mappings.streams.stream_id import partition_id
from spark_store.records import Change, Snapshot
from tests.support.in_process.service import NOW, until
from tests.support.in_process.streamr import (
    StreamrHarness,
    offsets,
    publish,
    resend,
    subscribe,
    subscribed,
)
from tests.support.temporary_journal import TemporaryJournal

pytestmark = pytest.mark.usefixtures("harnesses")

TANK = partition_id("tank", 0)
STAMP = "2030-01-15T07:30:00.000000Z"


def message(revision: int, size: int = 1, entity: EntityId = TANK) -> Event:
    return Event(entity, revision, STAMP, "published", "/", b'"%b"' % (b"x" * size), b"{}")


async def test_case_b11_a_resend_sends_exactly_the_messages_that_a_slow_session_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_subscription, "WINDOW", 2)
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.following.leeway, streamr_harness.following.clock = (
        LagTolerance(events=4),
        streamr_harness.clock.now,
    )
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    assert offsets(await streamr_harness.exchange("a", publish())) == [1]
    streamr_harness.link.confirms = False
    for offset in range(2, 10):
        streamr_harness.send(None, publish())
        await until(lambda offset=offset: len(streamr_harness.stored()) == offset)  # type: ignore[misc]
    await until(lambda: offsets(streamr_harness.received("a")) == [1, 2, 3])
    streamr_harness.clock.advance(2)
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    await until(lambda: 9 in offsets(streamr_harness.received("a")))
    assert offsets(streamr_harness.received("a")) == [1, 2, 3, 9]
    assert streamr_harness.received("a")[-1][3][6] == 8, "the predecessor is beyond 3, the last one that came"
    frames = await streamr_harness.exchange("a", resend(resend_from=4, resend_to=8), 7)
    assert offsets(frames, 1) == [4, 5, 6, 7, 8]
    assert offsets(await streamr_harness.exchange("a", publish())) == [10]


async def test_subscribers_with_the_same_frame_style_share_one_encoded_frame() -> None:
    journal = TemporaryJournal()
    events = [message(revision) for revision in range(1, 4)]
    journal.append([Change(tuple(events), (Snapshot(TANK, 3, STAMP, STAMP, {}, None),))])
    store = Store(journal)
    frames = FrameCache(StreamSource(store, FOREVER, lambda: NOW), max_frames=2, max_bytes=1000)
    first = frames.broadcast(events[0], PLAIN)
    assert first == b'[0,0,"",[28,"tank",0,1894692600000,0,1,null,27,"x"]]'
    assert frames.broadcast(events[0], PLAIN) is first
    assert frames.broadcast(events[0], FrameStyle(filler=None)) == first.replace(b'""', b"null")
    assert frames.broadcast(message(1, 2), PLAIN) == first.replace(b'"x"', b'"xx"'), "what it is of has changed"
    for event in events:
        frames.broadcast(event, PLAIN)
    assert len(frames._frames) == 2
    large = message(3, 5000)
    assert frames.broadcast(large, PLAIN) is frames.broadcast(large, PLAIN)
    assert (len(frames._frames), frames._bytes > 5000) == (1, True)
    frames.broadcast(events[1], PLAIN)
    assert (len(frames._frames), frames._bytes < 1000) == (1, True)
    await store.close()
