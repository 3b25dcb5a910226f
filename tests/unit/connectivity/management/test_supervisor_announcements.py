"""Announcements of a connection to its own targets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import pause, target, until
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.usefixtures("runs")

ANNOUNCED = "_/_/connections/announcements"
LINES = {
    "mappingEngine": "JavaScript",
    "options": {
        "outgoingScript": """
            function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, headers, value) {
                return Ditto.buildExternalMsg({mapped: 'yes'}, JSON.stringify(value), null, 'text/plain');
            }
        """
    },
}


def announcements(running: Running) -> list[dict[str, Any]]:
    return running.answers("events")


def kinds(running: Running) -> list[str]:
    return [message["topic"].rpartition("/")[2] for message in announcements(running)]


async def test_a_connection_announces_that_it_is_open_and_that_it_is_about_to_close() -> None:
    running = Running(targets=[target(ANNOUNCED), target(address="silent")])
    running.supervisor.open()
    await until(lambda: announcements(running))
    (opened,) = announcements(running)
    assert opened["topic"] == "_/site/connections/announcements/opened"
    assert (opened["path"], opened["value"]) == ("/", {"openedAt": "2030-01-15T07:30:00Z"})
    assert opened["headers"]["ditto-connection-id"] == "site"
    await running.supervisor.close(600)
    assert kinds(running) == ["opened", "closed"]
    closed = announcements(running)[1]
    assert closed["value"] == {"closedAt": "2030-01-15T07:30:00Z"}
    assert closed["headers"]["correlation-id"] != opened["headers"]["correlation-id"]
    assert running.answers("silent") == []


async def test_a_link_that_comes_and_goes_is_not_announced() -> None:
    running = await Running.opened(targets=[target(ANNOUNCED)])
    await running.linked_again()
    await pause()
    assert kinds(running) == []


async def test_a_connection_without_a_link_closes_in_silence() -> None:
    running = await Running.opened(targets=[target(ANNOUNCED)])
    running.supervisor.clients[0]._pauses = type(running.supervisor.clients[0]._pauses)(60, 60)
    running.broker.cut()
    await until(lambda: running.supervisor.clients[0].link is None)
    await asyncio.wait_for(running.supervisor.close(600), PATIENCE)
    assert kinds(running) == []


async def test_a_connection_that_is_opened_again_announces_it_again() -> None:
    running = await Running.opened(targets=[target(ANNOUNCED)])
    await running.supervisor.close(600)
    running.supervisor.open()
    await running.open_again()
    await until(lambda: len(announcements(running)) == 2)
    assert kinds(running) == ["closed", "opened"]


@pytest.mark.extra("javascript")
async def test_case_21_and_56_the_last_announcement_is_mapped_like_any_signal() -> None:
    """With the target's header mapping, address and payload mapping, which may be a script."""
    mapped = target(
        ANNOUNCED,
        address="events/{{ topic:subject }}",
        headerMapping={"of": "{{ connection:id }}", "what": "{{ topic:action-subject }}"},
        payloadMapping=["lines"],
    )
    running = await Running.opened(targets=[mapped], mappingDefinitions={"lines": LINES})
    await running.supervisor.close(30)
    (closed,) = running.broker.sent_to("events/closed")
    assert json.loads(closed.payload) == {"closedAt": "2030-01-15T07:30:00Z"}
    assert {**closed.headers} == {"content-type": "text/plain", "mapped": "yes", "of": "site", "what": "closed"}


async def test_closing_does_not_wait_forever_until_the_announcement_is_confirmed() -> None:
    running = await Running.opened(targets=[target(ANNOUNCED)])
    running.broker.withheld_confirms = 1
    closing = asyncio.create_task(running.supervisor.close(0.05))
    await asyncio.wait_for(closing, PATIENCE)
    assert kinds(running) == ["closed"]
