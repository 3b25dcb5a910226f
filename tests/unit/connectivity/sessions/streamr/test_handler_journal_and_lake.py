"""Streams that start in the lake, or whose start is erased: resends, and the named predecessors."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from connectivity.store.retained_history import RetainedHistory
from mappings.streams.stream_id import partition_id
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import EVENTS, Lake
from tests.support.in_process.streamr import Frame, StreamrHarness, publish, resend, subscribe
from tests.support.journal_entries import LATER
from tests.support.lake.tables import append_events, forget
from tests.support.temporary_journal import events_after

pytestmark = pytest.mark.usefixtures("harnesses")

TANK = partition_id("tank", 0)


def places(frames: list[Frame]) -> list[tuple[int, int | None]]:
    """Return offset and predecessor of each message in these frames."""
    return [(frame[3][5], frame[3][6]) for frame in frames if frame[1] in (0, 1)]


class TrimmedHistory:
    """A tank whose lake has everything that its journal has."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder)
        self.moved = 0

    async def filled(self, messages: int) -> StreamrHarness:
        opened = LakeHistory(self.lake)
        return await StreamrHarness.filled(messages=messages, cold=lambda: opened)

    async def trim(self, streamr_harness: StreamrHarness, keep: int) -> None:
        """The journal keeps the newest events alone, and nothing is known of the lake yet."""
        followed = events_after(streamr_harness.journal, self.moved, 1000, 1 << 30)
        append_events(self.lake, [each[:2] for each in followed])
        self.moved = followed[-1].seq
        assert await streamr_harness.store.trim(self.moved - keep, LATER) > 0
        streamr_harness.store.retained_history = RetainedHistory(
            streamr_harness.journal, streamr_harness.store.ask_lake
        )


@pytest.fixture
def history(tmp_path: Path) -> TrimmedHistory:
    return TrimmedHistory(tmp_path)


async def test_case_r19_the_first_message_from_the_lake_names_its_predecessor_there(history: TrimmedHistory) -> None:
    streamr_harness = await history.filled(6)
    await history.trim(streamr_harness, keep=2)
    frames = await streamr_harness.exchange("a", resend(resend_from=2), 7)
    assert places(frames) == [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    frames = await streamr_harness.exchange("a", resend(resend_all=True), 8)
    assert places(frames)[:2] == [(1, None), (2, 1)]


async def test_case_r24_expired_messages_are_not_resent_and_the_oldest_message_has_no_predecessor(
    history: TrimmedHistory,
) -> None:
    streamr_harness = await history.filled(6)
    await history.trim(streamr_harness, keep=2)
    forget(history.lake, f"entity = '{TANK.id}' AND revision <= 2")
    frames = await streamr_harness.exchange("a", resend(resend_all=True), 6)
    assert places(frames) == [(3, None), (4, 3), (5, 4), (6, 5)]
    frames = await streamr_harness.exchange("a", resend(resend_from=1, resend_to=2), 1)
    assert frames == [[0, 6, "", {"stream": "tank", "partition": 0, "sub": "a"}]]


async def test_case_r12_a_resend_from_a_time_starts_in_the_lake(history: TrimmedHistory) -> None:
    streamr_harness = await history.filled(0)
    streamr_harness.send(None, *(publish(ts=time) for time in (4, 9, 3, 10)))
    await streamr_harness.exchange("a", resend(resend_last=1), 3)
    await history.trim(streamr_harness, keep=1)
    assert places(await streamr_harness.exchange("b", resend(resend_from_time=5), 5)) == [(2, 1), (3, 2), (4, 3)]


async def test_a_message_after_a_long_silence_names_only_an_existing_predecessor(
    history: TrimmedHistory,
) -> None:
    """Old clients would request a predecessor without end that no resend returns."""
    streamr_harness = await history.filled(3)
    await history.trim(streamr_harness, keep=0)
    await streamr_harness.exchange("a", subscribe())
    await streamr_harness.publish(1)
    assert places(await streamr_harness.frames("a", 2)) == [(4, None)]
    await history.trim(streamr_harness, keep=0)
    assert streamr_harness.store.oldest_revision(TANK) == 5
    await streamr_harness.store.retained_history.round()
    await streamr_harness.publish(1)
    assert places(await streamr_harness.frames("a", 3)) == [(4, None), (5, 4)]
    await history.trim(streamr_harness, keep=0)
    assert streamr_harness.store.oldest_revision(TANK) == 6
    await streamr_harness.store.retained_history.round()
    # Retention takes everything, and the next round sees it.
    DeltaTable(history.lake.path(EVENTS)).delete("true")
    await streamr_harness.store.retained_history.round()
    await streamr_harness.publish(1)
    assert places(await streamr_harness.frames("a", 4)) == [(4, None), (5, 4), (6, None)]
