"""A connection test checks its document like a new connection, and keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.management.interface import SampleMessage
from connectivity.management.manager import TESTS_AT_ONCE
from connectivity.security.keys import new_key
from tests.support.in_process.connection_management import Bench, document, error_of, refused
from tests.support.wait import wait_until


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = await Bench(tmp_path, (new_key(),)).started()
    yield made
    await made.store.close()


TARGET = {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": ["acme:x"]}


class RecordingTest:
    """Notes what it is given to try out."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    async def __call__(self, connection: Connection, sample: SampleMessage | None) -> dict[str, Any]:
        self.connections.append(connection)
        return {"connection": "open"}


@pytest.fixture
def recording(bench: Bench) -> RecordingTest:
    bench.manager._connection_test = made = RecordingTest()
    return made


async def test_case_16_a_target_that_issues_a_label_of_its_connection_may_be_tried_out(
    bench: Bench, recording: RecordingTest
) -> None:
    for label in ("depot-7:delivered", "{{ connection:id }}:delivered"):
        given = document(targets=[{**TARGET, "issuedAcknowledgementLabel": label}], id="depot-7")
        assert await bench.manager.test(given) == {"connection": "open"}
    assert [each.id for each in recording.connections] == ["depot-7", "depot-7"]
    assert await bench.manager.definitions() == []


async def test_7_1_a_connection_test_of_a_document_without_an_id_uses_an_unused_id(
    bench: Bench, recording: RecordingTest
) -> None:
    await bench.manager.test(document())
    [connection] = recording.connections
    assert connection.id.endswith("-dry-run")


@pytest.mark.parametrize(
    ("targets", "status", "code"),
    [
        (["depot-7:seen", "depot-7:seen"], 409, "acknowledgement:label.not.unique"),
        (["other:seen"], 400, "acknowledgement:label.invalid"),
    ],
    ids=["case_44", "case_45"],
)
async def test_case_44_45_labels_are_judged_before_anybody_is_asked(
    bench: Bench, recording: RecordingTest, targets: list[str], status: int, code: str
) -> None:
    given = [
        {**TARGET, "address": f"out/{index}", "issuedAcknowledgementLabel": it} for index, it in enumerate(targets)
    ]
    assert error_of(await refused(bench.manager.test(document(targets=given, id="depot-7")))) == (status, code)
    assert recording.connections == []


async def test_few_are_tried_at_the_same_time_and_the_others_wait(bench: Bench) -> None:
    at_once: list[int] = []
    running, gate = 0, asyncio.Event()

    async def trial(connection: Connection, sample: SampleMessage | None) -> dict[str, Any]:
        nonlocal running
        running += 1
        at_once.append(running)
        await gate.wait()
        running -= 1
        return {}

    bench.manager._connection_test = trial
    trials = [asyncio.create_task(bench.manager.test(document())) for _ in range(3 * TESTS_AT_ONCE)]
    await wait_until(lambda: running == TESTS_AT_ONCE)
    gate.set()
    await asyncio.gather(*trials)
    assert (max(at_once), len(at_once)) == (TESTS_AT_ONCE, 3 * TESTS_AT_ONCE)
