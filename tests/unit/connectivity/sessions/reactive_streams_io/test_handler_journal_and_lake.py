"""Publishers whose first elements are only in the lake, or are deleted there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappings.reactive_streams_io.frames import Frame, OnComplete, OnError, OnNext
from mappings.streams.stream_id import partition_id
from tests.support.in_process.harness_lake import HarnessLake
from tests.support.in_process.reactive_streams_io import HISTORY, H, RsioHarness, elements, revisions, subscribe
from tests.support.in_process.service import LAMP
from tests.support.in_process.streamr import StreamrHarness, publish, resend
from tests.support.in_process.two_protocols import add_rsio_connection
from tests.support.lake.tables import forget

pytestmark = pytest.mark.usefixtures("harnesses")

TANK = partition_id("tank", 0)


@pytest.fixture
def history(tmp_path: Path) -> HarnessLake:
    return HarnessLake(tmp_path)


async def received(rsio_harness: RsioHarness, *publishers: str, number: int) -> list[Frame]:
    """Subscribe a client to these publishers; return the first `number` frames after the hello."""
    rsio_harness.send("a", H, *(subscribe(each, at, 100) for at, each in enumerate(publishers, 1)))
    return (await rsio_harness.framed("a", 1 + number))[1:]


async def test_a_history_begins_at_a_revision_in_the_lake(history: HarnessLake) -> None:
    rsio_harness = await RsioHarness.filled(revisions=6, cold=history.cold)
    await history.trim(rsio_harness, keep=2)
    frames = await received(rsio_harness, f"{HISTORY}?from=2", number=7)
    assert revisions(elements(frames)) == [2, 3, 4, 5, 6]
    assert frames[-1] == OnComplete(1)


async def test_case_n13_a_history_from_before_the_oldest_revision_in_the_lake_is_gone(history: HarnessLake) -> None:
    rsio_harness = await RsioHarness.filled(revisions=6, cold=history.cold)
    await history.trim(rsio_harness, keep=2)
    forget(history.lake, f"entity = '{LAMP.id}' AND revision <= 2")
    frames = await received(rsio_harness, f"{HISTORY}?from=2", f"{HISTORY}?from=3", HISTORY, number=2 + 6 + 6)
    (error,) = [frame for frame in frames if isinstance(frame, OnError)]
    assert error == OnError(
        1,
        "410 rsio:history.gone The request starts at 2, but the retained history of 'acme.site:lamp-7' starts at 3.",
    )
    for subscriber in (2, 3):
        found = [frame.element for frame in frames if isinstance(frame, OnNext) and frame.subscriber == subscriber]
        assert revisions(found) == [3, 4, 5, 6]


def places(frames: list[Frame]) -> list[tuple[int, int | None]]:
    """Return offset and predecessor of each message."""
    return [tuple(json.loads(each)[5:7]) for each in elements(frames)]


@pytest.mark.parametrize("start", ["resend_from=2", "resend_last=5", "resend_from_time=2"])
async def test_the_messages_of_a_stream_in_the_lake_name_their_predecessors(history: HarnessLake, start: str) -> None:
    streamr_harness = await StreamrHarness.filled(cold=history.cold)
    streamr_harness.send(None, *(publish(ts=time) for time in range(1, 7)))
    await streamr_harness.exchange("b", resend(resend_last=1), 3)
    rsio_harness = await add_rsio_connection(streamr_harness)
    await history.trim(streamr_harness, keep=2)
    frames = await received(rsio_harness, f"streams/tank/0?{start}&follow=false", number=7)
    assert places(frames) == [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]


@pytest.mark.parametrize("start", ["resend_from=5", "resend_last=2"])
async def test_the_oldest_message_of_the_journal_names_its_predecessor_in_the_lake(
    history: HarnessLake, start: str
) -> None:
    streamr_harness = await StreamrHarness.filled(messages=6, cold=history.cold)
    rsio_harness = await add_rsio_connection(streamr_harness)
    await history.trim(streamr_harness, keep=2)
    frames = await received(rsio_harness, f"streams/tank/0?{start}&follow=false", number=4)
    assert places(frames) == [(5, 4), (6, 5)]


async def test_a_stream_from_before_the_oldest_message_in_the_lake_is_gone(history: HarnessLake) -> None:
    streamr_harness = await StreamrHarness.filled(messages=6, cold=history.cold)
    rsio_harness = await add_rsio_connection(streamr_harness)
    await history.trim(streamr_harness, keep=2)
    forget(history.lake, f"entity = '{TANK.id}' AND revision <= 2")
    _, error = await received(rsio_harness, "streams/tank/0?resend_from=2&follow=false", number=2)
    assert isinstance(error, OnError)
    assert error.error.startswith("410 rsio:history.gone ")
