"""Expiry of policy subjects: each is carried out and announced once, also by the next process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.maintenance import policy_expiry as module
from connectivity.maintenance.policy_expiry import MOST_POLICIES, PolicyExpiryJob
from connectivity.store.store import Store
from connectivity.twins.decider import Decider
from connectivity.twins.policy_expiry import expire_subjects
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Command, Event, PolicyAnnouncement
from spark_store.errors import Unstorable
from spark_store.journal import policy_expiry
from spark_store.journal.journal import Journal
from spark_store.records import Change, Snapshot
from tests.support.in_process.service import HASTY, Disk

OWNER, GUEST = "edge:owner", "edge:guest"
ALL = {"grant": ["READ", "WRITE"], "revoke": []}
START = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
EIGHT = "2030-01-15T08:00:00Z"


def named(name: str) -> EntityId:
    return EntityId(EntityType.POLICY, "acme.site", name)


POLICY = named("pol-7")


class ExpirySetup:
    """A store, its clock, and the announcements."""

    def __init__(self, journal: Any) -> None:
        self.now = START
        self.journal = journal
        self.store = Store(journal, HASTY)
        self.decider = Decider(self.store, now=lambda: self.now)
        self.announced: list[PolicyAnnouncement] = []
        self.expiry = PolicyExpiryJob(self.store, self.announced.append, lambda: self.now)

    async def send(self, action: str, path: str, value: Any = None, policy: EntityId = POLICY) -> None:
        raw = None if value is None else json.dumps(value).encode()
        decision = self.decider.decide(Command(policy, action, path, raw, {}), [OWNER])
        await self.store.commits.submit([Change(decision.events, decision.snapshots)])

    async def write(self, policy: EntityId = POLICY, **guest: Any) -> None:
        """A policy whose guest expires at eight."""
        owners = {"subjects": {OWNER: {"type": "t"}}, "resources": {"policy:/": ALL}}
        about = {"type": "t", "expiry": EIGHT, **guest}
        value = {"entries": {"O": owners, "G": {"subjects": {GUEST: about}, "resources": {"policy:/": ALL}}}}
        await self.send("modify", "/", value, policy)

    def at(self, hour: int, minute: int) -> None:
        self.now = START.replace(hour=hour, minute=minute)

    def history(self, policy: EntityId = POLICY) -> list[Event]:
        return list(self.journal.events(policy, 1, 2**62, 1000, 1 << 30))

    def reported(self) -> list[str]:
        return [json.loads(each.value)["deleteAt"] for each in self.announced]


@pytest.fixture(params=["memory", "file"])
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExpirySetup]:
    made = ExpirySetup(Disk() if request.param == "memory" else Journal.open(tmp_path / "journal.db"))
    yield made
    await made.store.close()


async def test_case_60_a_subject_goes_at_its_time_with_an_event(setup: ExpirySetup) -> None:
    await setup.write(announcement={"whenDeleted": True})
    await setup.expiry.round()
    assert (len(setup.history()), setup.announced) == (1, [])
    setup.at(8, 0)
    await setup.expiry.round()
    event = setup.history()[-1]
    assert (event.action, event.path, event.revision) == ("deleted", f"/entries/G/subjects/{GUEST}", 2)
    assert event.timestamp == "2030-01-15T08:00:00.000000Z"
    assert setup.reported() == [EIGHT]
    setup.at(9, 0)
    await setup.expiry.round()
    assert (len(setup.history()), setup.reported()) == (2, [EIGHT])


async def test_a_subject_is_announced_once_before_each_expiry(setup: ExpirySetup) -> None:
    """Also when the policy changes meanwhile; another expiry is announced again."""
    await setup.write(announcement={"beforeExpiry": "20m"})
    for minute in (30, 39):
        setup.at(7, minute)
        await setup.expiry.round()
        assert setup.announced == []
    setup.at(7, 40)
    await setup.expiry.round()
    assert setup.reported() == [EIGHT]
    await setup.send("modify", "/entries/G/importable", "never")
    setup.at(7, 50)
    await setup.expiry.round()
    await setup.expiry.round()
    assert setup.reported() == [EIGHT]
    later = {"type": "t", "expiry": "2030-01-15T09:00:00Z", "announcement": {"beforeExpiry": "2h"}}
    await setup.send("modify", f"/entries/G/subjects/{GUEST}", later)
    await setup.expiry.round()
    assert setup.reported() == [EIGHT, "2030-01-15T09:00:00Z"]
    setup.at(8, 0)
    await setup.expiry.round()
    assert [event.action for event in setup.history()] == ["created", "modified", "modified"]


async def test_an_earlier_expiry_is_not_missed(setup: ExpirySetup) -> None:
    await setup.write(expiry="2031-01-01T00:00:00Z")
    await setup.expiry.round()
    await setup.send("modify", f"/entries/G/subjects/{GUEST}", {"type": "t", "expiry": EIGHT})
    setup.at(8, 0)
    await setup.expiry.round()
    assert setup.history()[-1].action == "deleted"


async def test_a_policy_deleted_meanwhile_is_not_changed(setup: ExpirySetup) -> None:
    await setup.write()
    await setup.send("delete", "/")
    setup.at(8, 0)
    await setup.expiry.round()
    assert [event.action for event in setup.history()] == ["created", "deleted"]
    assert setup.store.read(lambda it: policy_expiry.due(it, "9999", 10)) == []


async def test_all_that_is_due_at_once_is_carried_out(setup: ExpirySetup) -> None:
    """Expiries are rounded to whole hours, so many of them come together."""
    policies = [named(f"p{number}") for number in range(MOST_POLICIES + 3)]
    await asyncio.gather(*(setup.write(policy) for policy in policies))
    await setup.expiry.round()
    setup.at(8, 0)
    await setup.expiry.round()
    assert {setup.history(policy)[-1].action for policy in policies} == {"deleted"}


async def test_an_expiry_due_during_downtime_is_handled_at_the_next_start(tmp_path: Path) -> None:
    """Only the journal's file keeps it, together with the announcements that were sent."""
    first = ExpirySetup(Journal.open(tmp_path / "journal.db"))
    await first.write(announcement={"beforeExpiry": "30m", "whenDeleted": True})
    await first.expiry.round()
    assert first.reported() == [EIGHT]
    await first.store.close()
    second = ExpirySetup(Journal.open(tmp_path / "journal.db"))
    await second.expiry.round()
    assert second.reported() == []
    await second.store.close()
    third = ExpirySetup(Journal.open(tmp_path / "journal.db"))
    third.now = START + timedelta(days=3)
    await third.expiry.round()
    assert (third.history()[-1].action, third.reported()) == ("deleted", [EIGHT])
    assert third.history()[-1].timestamp == "2030-01-18T07:30:00.000000Z"
    await third.store.close()


async def test_an_expiry_that_cannot_be_stored_is_retried_when_the_store_is_available() -> None:
    setup = ExpirySetup(disk := Disk())
    await setup.write(announcement={"whenDeleted": True})
    setup.at(8, 0)
    disk.full = True
    with capture_logs() as logs:
        await setup.expiry.round()
    assert "policy expiry waits for the store" in [each["event"] for each in logs]
    assert setup.announced == []
    await setup.expiry.round()
    assert setup.announced == [], "nothing is tried while the store is away"
    disk.full = False
    await setup.store.commits.wait_available()
    await setup.expiry.round()
    assert (len(setup.history()), setup.reported()) == (2, [EIGHT])
    await setup.store.close()


async def test_an_event_that_is_wrong_costs_its_own_policy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = ExpirySetup(Disk())
    await setup.write(named("bad"), announcement={"whenDeleted": True})
    await setup.write()
    setup.at(8, 0)
    steps = setup.journal.steps

    def refuse(changes: Any) -> Iterator[None]:
        if any(event.entity == named("bad") for change in changes for event in change.events):
            raise Unstorable("wrong in itself")
        yield from steps(changes)

    monkeypatch.setattr(setup.journal, "steps", refuse)
    with capture_logs() as logs:
        await setup.expiry.round()
    assert "policy expiry failed" in [each["event"] for each in logs]
    assert (len(setup.history()), len(setup.history(named("bad"))), setup.announced) == (2, 1, [])
    await setup.store.close()


async def test_failing_policies_do_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full round of failing policies; they are checked again a minute later."""
    setup = ExpirySetup(Disk())
    bad = [named(f"bad{number}") for number in range(MOST_POLICIES)]
    await asyncio.gather(*(setup.write(policy) for policy in [*bad, POLICY]))
    await setup.expiry.round()
    setup.at(8, 0)
    tried: list[EntityId] = []

    def judged(policy: Snapshot, *more: Any) -> Any:
        if policy.entity in bad:
            tried.append(policy.entity)
            raise ZeroDivisionError("internal error")
        return expire_subjects(policy, *more)

    monkeypatch.setattr(module, "expire_subjects", judged)
    with capture_logs():
        await setup.expiry.round()
        await setup.expiry.round()
        assert setup.history()[-1].action == "deleted"
        assert len(tried) == len(bad)
        setup.at(8, 1)
        await setup.expiry.round()
    assert len(tried) == 2 * len(bad)
    await setup.store.close()


async def test_b10_damaged_policies_do_not_delay_others() -> None:
    """A full round of damaged policies; they are checked again a minute later."""
    setup = ExpirySetup(disk := Disk())
    bad = [named(f"bad{number}") for number in range(MOST_POLICIES)]
    await asyncio.gather(*(setup.write(policy) for policy in [*bad, POLICY]))
    await setup.expiry.round()
    disk.within(lambda it: it.execute("UPDATE entities SET state = '{\"expiry\"' WHERE id LIKE '%:bad%'"))
    disk.commit()
    setup.store._cache.clear()
    setup.at(8, 0)
    with capture_logs() as lines:
        await setup.expiry.round()
        await setup.expiry.round()
        assert setup.history()[-1].action == "deleted"
        assert [line["event"] for line in lines].count("policy expiry failed") == len(bad)
        setup.at(8, 1)
        await setup.expiry.round()
    assert [line["event"] for line in lines].count("policy expiry failed") == 2 * len(bad)
    await setup.store.close()


@pytest.mark.parametrize(("turn", "commits", "turns"), [(60.0, 10, 0), (0.0, 60, 20)])
async def test_expiries_due_together_share_commits_and_yield_to_other_tasks(
    turn: float, commits: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many commits, and at least so many turns for others, for twenty policies."""
    monkeypatch.setattr(module, "TURN_SECONDS", turn)
    setup = ExpirySetup(disk := Disk())
    await asyncio.gather(*(setup.write(named(f"p{number}")) for number in range(20)))
    await setup.expiry.round()
    setup.at(8, 0)
    before, passed = disk.commits, 0
    looking = asyncio.create_task(setup.expiry.round())
    while not looking.done():
        await asyncio.sleep(0)
        passed += 1
    assert disk.commits - before < commits
    assert passed > turns
    await setup.store.close()
