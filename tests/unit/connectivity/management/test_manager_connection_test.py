"""A connection test checks its document like a new connection, and keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.management.definition import SampleMessage
from connectivity.management.manager import TESTS_AT_ONCE
from connectivity.security import redaction
from connectivity.security.keys import new_key
from connectivity.security.redaction import redact
from connectivity.security.uri import MASK
from tests.support.in_process.connection_management import ManagementHarness, agree, document, error_of, refused
from tests.support.wait import wait_until


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ManagementHarness]:
    made = await ManagementHarness(tmp_path, (new_key(),)).started()
    yield made
    await made.store.close()


TARGET = {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": ["acme:x"]}


class RecordingTest:
    """A connection test that records the connections that it is called with."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    async def __call__(self, connection: Connection, sample: SampleMessage | None) -> dict[str, Any]:
        self.connections.append(connection)
        return {"connection": "open"}


@pytest.fixture
def recording(harness: ManagementHarness) -> RecordingTest:
    harness.manager._connection_test = made = RecordingTest()
    return made


async def test_case_16_a_target_that_issues_a_label_of_its_connection_can_be_tested(
    harness: ManagementHarness, recording: RecordingTest
) -> None:
    for label in ("depot-7:delivered", "{{ connection:id }}:delivered"):
        given = document(targets=[{**TARGET, "issuedAcknowledgementLabel": label}], id="depot-7")
        assert await harness.manager.test(given) == {"connection": "open"}
    assert [each.id for each in recording.connections] == ["depot-7", "depot-7"]
    assert await harness.manager.definitions() == []


async def test_7_1_a_connection_test_of_a_document_without_an_id_uses_an_unused_id(
    harness: ManagementHarness, recording: RecordingTest
) -> None:
    await harness.manager.test(document())
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
async def test_case_44_45_labels_are_checked_before_any_request(
    harness: ManagementHarness, recording: RecordingTest, targets: list[str], status: int, code: str
) -> None:
    given = [
        {**TARGET, "address": f"out/{index}", "issuedAcknowledgementLabel": it} for index, it in enumerate(targets)
    ]
    assert error_of(await refused(harness.manager.test(document(targets=given, id="depot-7")))) == (status, code)
    assert recording.connections == []


async def test_few_are_tried_at_the_same_time_and_the_others_wait(harness: ManagementHarness) -> None:
    at_once: list[int] = []
    running, gate = 0, asyncio.Event()

    async def connection_test(connection: Connection, sample: SampleMessage | None) -> dict[str, Any]:
        nonlocal running
        running += 1
        at_once.append(running)
        await gate.wait()
        running -= 1
        return {}

    harness.manager._connection_test = connection_test
    tests = [asyncio.create_task(harness.manager.test(document())) for _ in range(3 * TESTS_AT_ONCE)]
    await wait_until(lambda: running == TESTS_AT_ONCE)
    gate.set()
    await asyncio.gather(*tests)
    assert (max(at_once), len(at_once)) == (TESTS_AT_ONCE, 3 * TESTS_AT_ONCE)


async def test_connection_tests_do_not_show_the_secret_of_a_running_connection(
    harness: ManagementHarness, recording: RecordingTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither tests with its ID nor very many others."""
    monkeypatch.setattr(redaction, "FORMER", 3, raising=False)
    uri = "tcp://ada:{}@127.0.0.1:1883"
    await harness.manager.put("depot", document(uri=uri.format("kanarienvogel")), "ada", agree)
    assert harness.done() == ["open depot"]
    for number in range(10):
        for more in ({"id": "depot"}, {}):
            await harness.manager.test({**document(uri=uri.format(f"nachtigall-{number}")), **more})
    recording.connections.clear()
    assert redact("a kanarienvogel") == f"a {MASK}"
