"""Streams that start in the lake, or whose start is erased: resends, and the named predecessors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mappings.streams.stream_id import partition_id
from spark_store.lake.tables import EVENTS
from tests.support.in_process.harness_lake import HarnessLake
from tests.support.in_process.streamr import Frame, StreamrHarness, publish, resend, subscribe
from tests.support.lake.tables import forget

pytestmark = pytest.mark.usefixtures("harnesses")

TANK = partition_id("tank", 0)


def places(frames: list[Frame]) -> list[tuple[int, int | None]]:
    """Return offset and predecessor of each message in these frames."""
    return [(frame[3][5], frame[3][6]) for frame in frames if frame[1] in (0, 1)]


@pytest.fixture
def history(tmp_path: Path) -> HarnessLake:
    return HarnessLake(tmp_path)


async def test_case_r19_the_first_message_from_the_lake_names_its_predecessor_there(history: HarnessLake) -> None:
    streamr_harness = await StreamrHarness.filled(messages=6, cold=history.cold)
    await history.trim(streamr_harness, keep=2)
    frames = await streamr_harness.exchange("a", resend(resend_from=2), 7)
    assert places(frames) == [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    frames = await streamr_harness.exchange("a", resend(resend_all=True), 8)
    assert places(frames)[:2] == [(1, None), (2, 1)]


@pytest.mark.parametrize("options", [{"resend_from": 5}, {"resend_last": 2}])
async def test_case_r19_the_oldest_message_of_the_journal_names_its_predecessor_in_the_lake(
    history: HarnessLake, options: dict[str, Any]
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=6, cold=history.cold)
    await history.trim(streamr_harness, keep=2)
    frames = await streamr_harness.exchange("a", resend(**options), 4)
    assert places(frames) == [(5, 4), (6, 5)]


async def test_case_r24_expired_messages_are_not_resent_and_the_oldest_message_has_no_predecessor(
    history: HarnessLake,
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=6, cold=history.cold)
    await history.trim(streamr_harness, keep=2)
    forget(history.lake, f"entity = '{TANK.id}' AND revision <= 2")
    frames = await streamr_harness.exchange("a", resend(resend_all=True), 6)
    assert places(frames) == [(3, None), (4, 3), (5, 4), (6, 5)]
    frames = await streamr_harness.exchange("a", resend(resend_from=1, resend_to=2), 1)
    assert frames == [[0, 6, "", {"stream": "tank", "partition": 0, "sub": "a"}]]


async def test_case_r12_a_resend_from_a_time_starts_in_the_lake(history: HarnessLake) -> None:
    streamr_harness = await StreamrHarness.filled(messages=0, cold=history.cold)
    streamr_harness.send(None, *(publish(ts=time) for time in (4, 9, 3, 10)))
    await streamr_harness.exchange("a", resend(resend_last=1), 3)
    await history.trim(streamr_harness, keep=1)
    assert places(await streamr_harness.exchange("b", resend(resend_from_time=5), 5)) == [(2, 1), (3, 2), (4, 3)]


async def test_a_message_after_a_long_silence_names_only_an_existing_predecessor(
    history: HarnessLake,
) -> None:
    """Old clients would request a predecessor without end that no resend returns."""
    streamr_harness = await StreamrHarness.filled(messages=3, cold=history.cold)
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
