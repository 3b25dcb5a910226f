"""Retrieving past states. Row numbers are those of the decision table of historical retrieve.

The lamp has revisions 1 (created) to 5, ten seconds apart: 2 to 5 set `/attributes/on` to 2 … 5.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from connectivity.store import past_state
from connectivity.store.past_state import state_at
from connectivity.twins.context import TwinLimits
from connectivity.twins.decider import Decider
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import Lake
from spark_store.records import PastQuery
from tests.support.in_process.service import (
    LAMP,
    NOW,
    OWNER,
    ConnectionHarness,
    command,
    creation,
    document,
    policy,
    source,
    turn,
)
from tests.support.journal_entries import LATER
from tests.support.lake.tables import append_events, append_snapshots, forget
from tests.support.replayed import fold

POLICY = EntityId(EntityType.POLICY, "acme.site", "lamp-7")
READER = "acme:reader"


class PastSite:
    """A site whose clock moves ten seconds with every command."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder)
        cold = LakeHistory(self.lake)
        self.now = NOW
        self.harness = ConnectionHarness(
            source("in", OWNER),
            source("other", READER),
            cold=lambda: cold,
            decider=lambda store: Decider(
                store, now=lambda: self.now, limits=TwinLimits(historical_headers=("ditto-originator", "note"))
            ),
        )

    async def ask(self, payload: bytes, source: int = 0) -> dict[str, Any]:
        self.now += timedelta(seconds=10)
        return await self.harness.ask(payload, source=source)

    async def retrieve(self, path: str = "/", *, by: int = 0, name: str = "lamp-7", **headers: Any) -> dict[str, Any]:
        return await self.ask(command("retrieve", path, name=name, **headers), by)

    async def status(self, **options: Any) -> tuple[int, str | None]:
        answer = await self.retrieve(**options)
        return answer["status"], answer["value"].get("error") if isinstance(answer["value"], dict) else None

    async def on(self, **options: Any) -> Any:
        answer = await self.retrieve(**options)
        assert answer["status"] == 200, answer
        return answer["value"].get("attributes", {}).get("on")

    async def move(self, last: int, *, forgotten: int = 0) -> None:
        """Write the whole history to the lake, trim the journal up to a number, and delete lake revisions."""
        things, policies = self.harness.history(LAMP), self.harness.history(POLICY)
        append_events(self.lake, list(enumerate([*policies, *things], 1)))
        await self.harness.store.commits.trim(last, LATER)
        if forgotten:
            forget(self.lake, f"revision <= {forgotten} AND entity_type = 'thing'")


@pytest.fixture
async def lamp(tmp_path: Path, harnesses: list[ConnectionHarness]) -> PastSite:
    made = PastSite(tmp_path)
    assert (await made.ask(creation("lamp-7", OWNER)))["status"] == 201
    for number in range(2, 6):
        assert (await made.ask(turn(number, note=f"n-{number}")))["status"] in (201, 204)
    made.harness.forget()
    return made


WHEN = {revision: (NOW + timedelta(seconds=10 * revision)).isoformat().replace("+00:00", "Z") for revision in range(8)}
"""The timestamp of each revision."""

HISTORY_NOT_FOUND = (404, "things:thing.history.notfound")
NOT_FOUND = (404, "things:thing.notfound")


@pytest.fixture(params=["in the journal", "across the border", "in the lake"])
async def moved_lamp(request: pytest.FixtureRequest, lamp: PastSite) -> PastSite:
    if request.param != "in the journal":
        # The policy's one event has the first number.
        await lamp.move(3 if request.param == "across the border" else 99)
    return lamp


async def test_row_01_a_revision_to_come_is_not_found(lamp: PastSite) -> None:
    answer = await lamp.retrieve(at_historical_revision=6)
    assert (answer["status"], answer["value"]["error"]) == HISTORY_NOT_FOUND
    assert answer["topic"] == "acme.site/lamp-7/things/twin/errors"
    assert answer["value"]["message"] == (
        "The Thing with ID 'acme.site:lamp-7' at revision '6' could not be found or requester had insufficient permissions "
        "to access it."
    )
    assert "history-retention-duration" in answer["value"]["description"]


async def test_row_02_the_newest_revision_is_the_present(lamp: PastSite) -> None:
    answer = await lamp.retrieve(at_historical_revision=5)
    assert answer["value"]["attributes"] == {"on": 5}
    assert "historical-headers" not in answer["headers"]


async def test_row_03_the_state_after_each_revision(moved_lamp: PastSite) -> None:
    for revision in (4, 3, 2):
        answer = await moved_lamp.retrieve(at_historical_revision=revision)
        assert answer["value"]["attributes"] == {"on": revision}
        assert answer["headers"]["historical-headers"] == {"ditto-originator": OWNER, "note": f"n-{revision}"}
        assert answer["headers"]["entity-revision"] == revision
    assert await moved_lamp.on(at_historical_revision="1") is None


async def test_row_03_parts_and_fields_of_the_past(moved_lamp: PastSite) -> None:
    assert (await moved_lamp.retrieve("/attributes/on", at_historical_revision=3))["value"] == 3
    missing = await moved_lamp.status(path="/attributes/on", at_historical_revision=1)
    assert missing == (404, "things:attributes.notfound")
    asked = command("retrieve", at_historical_revision=2)
    message = asked.replace(b'"path": "/"', b'"path": "/", "fields": "_revision,_modified,_created,attributes"')
    answer = await moved_lamp.ask(message)
    assert answer["value"] == {
        "attributes": {"on": 2},
        "_revision": 2,
        "_created": WHEN[1],
        "_modified": WHEN[2],
    }


async def test_row_04_a_revision_deleted_by_retention_is_not_found(lamp: PastSite) -> None:
    await lamp.move(99, forgotten=3)
    assert await lamp.status(at_historical_revision=2) == HISTORY_NOT_FOUND
    # The event of revision 4 exists, but the state before it does not.
    assert await lamp.status(at_historical_revision=4) == HISTORY_NOT_FOUND
    assert await lamp.on(at_historical_revision=5) == 5


async def test_row_04_a_snapshot_replaces_the_events_deleted_by_retention(lamp: PastSite) -> None:
    events = lamp.harness.history(LAMP)
    append_snapshots(lamp.lake, [fold(events[:3])])
    await lamp.move(99, forgotten=3)
    assert await lamp.status(at_historical_revision=2) == HISTORY_NOT_FOUND
    assert await lamp.on(at_historical_revision=3) == 3
    assert await lamp.on(at_historical_revision=4) == 4


@pytest.mark.parametrize("revision", [0, -1, -5])
async def test_row_05_revisions_below_one_are_not_found(lamp: PastSite, revision: int) -> None:
    assert await lamp.status(at_historical_revision=revision) == HISTORY_NOT_FOUND


async def test_row_06_an_instant_to_come_is_not_found(lamp: PastSite) -> None:
    answer = await lamp.retrieve(at_historical_timestamp="2031-01-01T00:00:00Z")
    assert (answer["status"], answer["value"]["error"]) == HISTORY_NOT_FOUND
    assert "at timestamp '2031-01-01T00:00:00Z'" in answer["value"]["message"]


async def test_row_07_before_the_first_event_nothing_existed(moved_lamp: PastSite) -> None:
    assert await moved_lamp.status(at_historical_timestamp=WHEN[0]) == HISTORY_NOT_FOUND
    assert await moved_lamp.status(at_historical_timestamp=WHEN[1]) == HISTORY_NOT_FOUND


async def test_row_08_the_event_of_that_instant_is_left_out(moved_lamp: PastSite) -> None:
    assert await moved_lamp.on(at_historical_timestamp=WHEN[2]) is None
    assert await moved_lamp.on(at_historical_timestamp=WHEN[3]) == 2
    assert await moved_lamp.on(at_historical_timestamp=WHEN[4]) == 3
    assert await moved_lamp.on(at_historical_timestamp=WHEN[5]) == 4
    answer = await moved_lamp.retrieve(at_historical_timestamp=WHEN[6])
    assert answer["value"]["attributes"]["on"] == 5
    assert answer["headers"]["historical-headers"]["note"] == "n-5"


async def test_row_09_a_snapshot_without_an_event_after_it_is_the_answer(lamp: PastSite) -> None:
    events = lamp.harness.history(LAMP)
    append_snapshots(lamp.lake, [fold(events[:2]), fold(events[:4])])
    await lamp.move(99, forgotten=5)
    assert await lamp.on(at_historical_timestamp=WHEN[5]) == 4
    assert await lamp.on(at_historical_timestamp=WHEN[4]) == 2
    assert await lamp.status(at_historical_timestamp=WHEN[2]) == HISTORY_NOT_FOUND


async def test_row_10_both_bounds_apply(moved_lamp: PastSite) -> None:
    assert await moved_lamp.on(at_historical_revision=2, at_historical_timestamp=WHEN[5]) == 2
    assert await moved_lamp.on(at_historical_revision=4, at_historical_timestamp=WHEN[3]) == 2
    assert await moved_lamp.on(at_historical_revision=5, at_historical_timestamp=WHEN[3]) == 2
    assert await moved_lamp.status(at_historical_revision=9, at_historical_timestamp=WHEN[3]) == HISTORY_NOT_FOUND


async def test_row_11_an_entity_that_was_deleted_then_is_not_found(lamp: PastSite) -> None:
    await lamp.ask(command("delete"))
    value = {"policyId": str(POLICY), "attributes": {"on": "again"}}
    assert (await lamp.ask(command("create", value=value)))["status"] == 201
    await lamp.ask(turn("later"))
    assert await lamp.status(at_historical_revision=6) == NOT_FOUND
    assert await lamp.on(at_historical_revision=7) == "again"
    assert await lamp.on(at_historical_revision=5) == 5


async def test_row_12_an_entity_that_is_deleted_now_has_no_past(lamp: PastSite) -> None:
    await lamp.ask(command("delete"))
    assert await lamp.status(at_historical_revision=2) == NOT_FOUND
    assert await lamp.status(at_historical_revision=99) == NOT_FOUND


async def test_row_13_a_revision_that_is_no_number_is_invalid(lamp: PastSite) -> None:
    assert await lamp.status(at_historical_revision="x") == (400, "header.invalid")


@pytest.mark.parametrize("text", ["bad", "2030-01-15", "2030-01-15T07:30Z", "2030-01-15T07:30:00"])
async def test_row_14_an_instant_that_is_invalid_is_invalid(lamp: PastSite, text: str) -> None:
    assert await lamp.status(at_historical_timestamp=text) == (400, "header.invalid")
    assert (await lamp.retrieve(at_historical_timestamp=text))["value"]["message"] == (
        f"The value '{text}' of the header 'at-historical-timestamp' is not a valid time (ISO-8601 with seconds and an "
        "offset, such as 2030-01-15T07:30:00Z)."
    )


async def test_row_15_a_past_state_is_not_found_without_read_permission_now(lamp: PastSite) -> None:
    for asked in ({"at_historical_revision": 2}, {"at_historical_revision": 99}, {"at_historical_timestamp": WHEN[3]}):
        assert await lamp.status(by=1, **asked) == NOT_FOUND
    assert await lamp.status(name="nobody", at_historical_revision=1) == NOT_FOUND


async def test_row_15_the_current_policy_decides_which_parts_of_a_past_state_are_visible(lamp: PastSite) -> None:
    resources = {"thing:/attributes/on": {"grant": ["READ"], "revoke": []}}
    open_now = policy(OWNER)
    open_now["entries"]["R"] = {"subjects": {READER: {"type": "t"}}, "resources": resources}
    changed = document("acme.site/lamp-7/policies/commands/modify", value={"policyId": str(POLICY), **open_now})
    assert (await lamp.ask(changed))["status"] == 204
    answer = await lamp.retrieve(by=1, at_historical_revision=3)
    assert answer["value"] == {"thingId": str(LAMP), "attributes": {"on": 3}}


async def test_headers_of_a_command_that_changed_an_unreadable_part_are_not_shown(lamp: PastSite) -> None:
    resources = {"thing:/attributes/open": {"grant": ["READ"], "revoke": []}}
    open_now = policy(OWNER)
    open_now["entries"]["R"] = {"subjects": {READER: {"type": "t"}}, "resources": resources}
    changed = document("acme.site/lamp-7/policies/commands/modify", value={"policyId": str(POLICY), **open_now})
    assert (await lamp.ask(changed))["status"] == 204
    for command_ in (command("modify", "/attributes/open", 1), turn("secret", note="fired"), turn("later")):
        assert (await lamp.ask(command_))["status"] in (201, 204)
    answer = await lamp.retrieve(by=1, at_historical_revision=7)
    assert (answer["value"]["attributes"], answer["headers"]["historical-headers"]) == ({"open": 1}, {})
    answer = await lamp.retrieve(at_historical_revision=7)
    assert answer["headers"]["historical-headers"] == {"ditto-originator": OWNER, "note": "fired"}


async def test_row_16_other_commands_ignore_or_refuse_the_headers_of_historical_retrieve(lamp: PastSite) -> None:
    assert (await lamp.ask(turn("now", at_historical_revision=2)))["status"] == 204
    ids = {"thingIds": [str(LAMP)]}
    several = document("acme.site/_/things/twin/commands/retrieve", value=ids, at_historical_revision=2)
    answer = await lamp.ask(several)
    assert (answer["status"], answer["value"]["error"]) == (400, "header.notsupported")


async def test_a_policy_has_a_past_as_well(lamp: PastSite) -> None:
    shared = policy(OWNER, READER)
    topic = "acme.site/lamp-7/policies/commands/"
    assert (await lamp.ask(document(topic + "modify", value={"policyId": str(POLICY), **shared})))["status"] == 204
    answer = await lamp.ask(document(topic + "retrieve", at_historical_revision=1))
    assert list(answer["value"]["entries"]["OWNER"]["subjects"]) == [OWNER]
    assert answer["headers"]["historical-headers"] == {"ditto-originator": OWNER}
    answer = await lamp.ask(document(topic + "retrieve", at_historical_revision=3))
    assert (answer["status"], answer["value"]["error"]) == (404, "policies:policy.history.notfound")


# how it is found


async def test_a_past_that_was_just_decided_is_answered_when_it_is_durable(lamp: PastSite) -> None:
    lamp.harness.disk.hold()
    deliveries = [turn(6), turn(7), command("retrieve", at_historical_revision=6, correlation_id="asked")]
    lamp.harness.deliver(*deliveries)
    lamp.harness.disk.release()
    await lamp.harness.settled(3)
    assert [
        it["value"]["attributes"] for it in lamp.harness.answers() if it["headers"].get("correlation-id") == "asked"
    ] == [{"on": 6}]


async def test_an_instant_before_which_something_was_just_decided_waits_for_it(lamp: PastSite) -> None:
    lamp.harness.disk.hold()
    lamp.now += timedelta(seconds=10)
    lamp.harness.deliver(turn(6))
    lamp.now += timedelta(seconds=10)
    instant = lamp.now.isoformat().replace("+00:00", "Z")
    lamp.harness.deliver(command("retrieve", at_historical_timestamp=instant, correlation_id="asked"))
    lamp.harness.disk.release()
    await lamp.harness.settled(2)
    (answer,) = [it for it in lamp.harness.answers() if it["headers"].get("correlation-id") == "asked"]
    assert answer["value"]["attributes"] == {"on": 6}


async def test_a_lake_that_cannot_be_read_is_reported(lamp: PastSite) -> None:
    await lamp.harness.store.commits.trim(4, LATER)
    answer = await lamp.retrieve(at_historical_revision=2)
    assert (answer["status"], answer["value"]["error"]) == (500, "internalerror")
    assert "older part of this history" in answer["value"]["message"]
    assert await lamp.on(at_historical_revision=5) == 5


@pytest.mark.parametrize("short", [0, 1000])
async def test_long_histories_start_at_the_nearest_state(
    lamp: PastSite, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    monkeypatch.setattr(past_state, "SHORT", short)
    monkeypatch.setattr(past_state, "_PAGE", 2)
    await lamp.ask(command("modify", value={"policyId": str(POLICY), "attributes": {"on": "whole"}}))
    await lamp.ask(turn(7))
    await lamp.ask(turn(8))
    events = lamp.harness.history(LAMP)
    await lamp.move(99)
    for revision in (2, 5, 6, 7):
        found = await state_at(lamp.harness.store, PastQuery(LAMP, revision, None))
        assert found is not None
        assert found.snapshot == fold(events[:revision])
        assert found.headers == events[revision - 1].headers
    append_snapshots(lamp.lake, [fold(events[:4])])
    found = await state_at(lamp.harness.store, PastQuery(LAMP, 5, None))
    assert found is not None
    assert found.snapshot == fold(events[:5])


async def test_a_creation_that_is_forgotten_is_known_from_the_present(
    lamp: PastSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_state, "SHORT", 0)
    await lamp.ask(command("modify", value={"policyId": str(POLICY), "attributes": {"on": "whole"}}))
    await lamp.ask(turn(7))
    events: list[Event] = lamp.harness.history(LAMP)
    await lamp.move(99, forgotten=5)
    found = await state_at(lamp.harness.store, PastQuery(LAMP, 6, None))
    assert found is not None
    assert found.snapshot == fold(events[:6])
    assert datetime.fromisoformat(found.snapshot.created) == NOW + timedelta(seconds=10)
