"""A retrieve of several things is answered in slices, with the states of the time of the request."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.authorization.enforcer import Enforcer
from tests.support.in_process.search_client import has_thing
from tests.support.in_process.service import ConnectionHarness, command, document, pause, policy, source, turn, until

pytestmark = pytest.mark.usefixtures("harnesses")

IDS = [f"acme.site:lamp-{number}" for number in (7, 8, 9)]
TURN = "another turn of the event loop"


def several(**members: Any) -> bytes:
    """Return a retrieve of all things."""
    message = json.loads(document("_/_/things/twin/commands/retrieve", value={"thingIds": IDS}))
    return json.dumps({**message, **members}).encode()


@pytest.fixture
async def harness() -> ConnectionHarness:
    """A site with three lamps."""
    harness = ConnectionHarness(source())
    for id in IDS:
        await has_thing(harness, id.partition(":")[2], {"attributes": {"on": True}})
    harness.link.published.clear()
    harness.outcomes.clear()
    return harness


@pytest.fixture
def viewed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The things that are viewed; each takes longer than a slice of the clock."""
    seen: list[str] = []
    view = Enforcer.view

    def recording(self: Enforcer, value: Any, path: str, subjects: Any) -> Any:
        if path in ("thing:/", "policy:/"):
            seen.append(value["thingId"] if path == "thing:/" else "policy")
            asyncio.get_running_loop().call_soon(seen.append, TURN)
        return view(self, value, path, subjects)

    monkeypatch.setattr(Enforcer, "view", recording)
    monkeypatch.setattr(time, "perf_counter", count().__next__)
    return seen


async def test_other_work_gets_its_turn_between_the_things_of_one_response(
    harness: ConnectionHarness, viewed: list[str]
) -> None:
    answer = await harness.ask(several())
    assert viewed == [IDS[0], TURN, IDS[1], TURN, IDS[2], TURN]
    assert [thing["thingId"] for thing in answer["value"]] == IDS
    assert (answer["status"], answer["headers"]["content-type"]) == (200, "application/json")
    await harness.settled(1)


async def test_other_work_gets_its_turn_between_a_thing_and_its_policy(
    harness: ConnectionHarness, viewed: list[str]
) -> None:
    answer = await harness.ask(several(fields="thingId,_policy"))
    assert viewed == [each for id in IDS for each in (id, TURN, "policy", TURN)]
    assert [(thing["thingId"], "entries" in thing["_policy"]) for thing in answer["value"]] == [
        (id, True) for id in IDS
    ]


async def test_a_change_between_two_slices_is_not_in_the_response(
    harness: ConnectionHarness, viewed: list[str]
) -> None:
    harness.deliver(several(fields="thingId,attributes/on,_revision,_policy/entries"))
    while not viewed:
        await pause(1)
    assert IDS[1] not in viewed
    for id in IDS:
        name = id.partition(":")[2]
        changed = policy("acme:owner", "acme:other")["entries"]
        harness.deliver(
            command("modify", "/attributes/on", False, name=name),
            document(f"acme.site/{name}/policies/commands/modify", "/entries", changed),
        )
    await harness.settled(7)
    found = next(each["value"] for each in harness.answers() if each["topic"] == "_/_/things/twin/commands/retrieve")
    assert [thing["thingId"] for thing in found] == IDS
    for thing in found:
        assert (thing["attributes"], thing["_revision"]) == ({"on": True}, 1)
        assert list(thing["_policy"]["entries"]["OWNER"]["subjects"]) == ["acme:owner"]


async def test_the_response_shows_a_change_before_it_only_when_that_is_durable(harness: ConnectionHarness) -> None:
    harness.disk.hold()
    harness.deliver(turn(False), several(fields="attributes/on"))
    await pause()
    assert harness.link.published == []
    harness.disk.release()
    await until(lambda: len(harness.link.published) == 2)
    assert harness.answers()[1]["value"][0] == {"attributes": {"on": False}}


async def test_an_internal_error_in_a_later_slice_is_the_response(
    harness: ConnectionHarness, viewed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = Enforcer.view

    def failing(self: Enforcer, value: Any, path: str, subjects: Any) -> Any:
        if len(viewed) > 2:
            raise RuntimeError("broken")
        return view(self, value, path, subjects)

    monkeypatch.setattr(Enforcer, "view", failing)
    with capture_logs() as logs:
        assert (await harness.ask(several()))["status"] == 500
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["things not retrieved"]
    await harness.settled(1)
