"""Commands beyond a quota, and creations on a full disk, are refused; other commands are accepted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from connectivity.authorization.quotas import Quantity, QuotaHolder, QuotaKey, Quotas
from connectivity.config.quotas import QuotaRule
from connectivity.dispatch.quota_check import QuotaCheck, free_space
from connectivity.store import quota_repository
from connectivity.store.store import Store
from spark_store.errors import StoreUnavailable
from spark_store.journal import creators, quota_days
from spark_store.journal.journal import Journal
from tests.support.in_process.service import (
    NOW,
    OWNER,
    ConnectionHarness,
    Disk,
    command,
    creation,
    document,
    pause,
    policy,
    turn,
    until,
)
from tests.support.temporary_journal import TemporaryJournal

pytestmark = pytest.mark.usefixtures("harnesses")


def policy_creation(name: str) -> bytes:
    value = {"policyId": f"acme.site:{name}", **policy(OWNER)}
    return document(f"acme.site/{name}/policies/commands/create", value=value)


class Bounded:
    """A service with quotas."""

    def __init__(
        self,
        *rules: dict[str, Any],
        low_space: int = 0,
        free: Callable[[Path], int] = lambda _: 0,
        journal: Journal | None = None,
    ) -> None:
        self.now = NOW
        self.quotas = quotas = Quotas([QuotaRule.model_validate(rule) for rule in rules])

        def check(store: Store) -> QuotaCheck:
            self.check = QuotaCheck(store, quotas, low_space, lambda: self.now, free)
            return self.check

        self.harness = ConnectionHarness(journal=journal or TemporaryJournal(), quota_check=check)
        self.ask = self.harness.ask

    def restarted(self, *rules: dict[str, Any]) -> Bounded:
        """Return the quotas of another service on the same journal."""
        return Bounded(*rules, journal=Journal.open(self.harness.store.path))

    def uses(self) -> dict[QuotaKey, int]:
        return {key: used for counts in self.quotas._all for key, used in counts.used.items()}

    async def status(self, payload: bytes) -> int:
        return int((await self.ask(payload))["status"])


async def test_things_beyond_the_quota_of_their_namespace_are_refused_until_one_is_deleted() -> None:
    bounded = Bounded({"namespaces": ["acme.*"], "things": 2})
    assert [await bounded.status(creation(name)) for name in ("a", "b")] == [201, 201]
    refused = await bounded.ask(creation("c"))
    assert refused["status"] == 507
    assert refused["value"]["error"] == "things:quota.exceeded"
    assert "the namespace 'acme.site' uses 2 of its quota things of 2" in refused["value"]["message"]
    assert await bounded.status(command("modify", "/attributes/on", 1, name="a")) == 201
    assert await bounded.status(command("delete", name="a")) == 204
    assert await bounded.status(creation("c")) == 201


async def test_a_thing_counts_for_the_subject_that_created_it() -> None:
    bounded = Bounded({"subjects": [OWNER], "things": 1})
    assert await bounded.status(creation("a")) == 201
    assert await bounded.status(creation("b")) == 507
    assert await bounded.status(command("delete", name="a")) == 204
    assert await bounded.status(creation("b")) == 201


async def test_the_policy_that_comes_with_a_thing_counts_too() -> None:
    bounded = Bounded({"namespaces": ["*"], "policies": 1})
    assert await bounded.status(creation("a")) == 201
    assert (await bounded.ask(creation("b")))["value"]["message"].count("quota policies of 1") == 1


async def test_commands_on_policies_get_codes_of_policies() -> None:
    bounded = Bounded({"namespaces": ["*"], "policies": 1}, {"subjects": ["*"], "events_per_day": 2})
    assert (await bounded.ask(policy_creation("p")))["status"] == 201
    assert (await bounded.ask(policy_creation("q")))["value"]["error"] == "policies:quota.exceeded"
    label = document("acme.site/p/policies/commands/modify", "/entries/OWNER/subjects/acme:more", {"type": "test"})
    assert (await bounded.ask(label))["status"] == 201
    assert (await bounded.ask(label))["value"]["error"] == "policies:dailyquota.exceeded"


async def test_events_per_day_are_refused_with_429() -> None:
    bounded = Bounded({"subjects": ["*"], "events_per_day": 4})
    assert await bounded.status(creation()) == 201
    assert [await bounded.status(turn(number)) for number in range(2)] == [201, 204]
    refused = await bounded.ask(turn(2))
    assert (refused["status"], refused["value"]["error"]) == (429, "things:dailyquota.exceeded")


async def test_a_quota_per_day_ends_with_the_day_of_the_service_for_any_event_times() -> None:
    bounded = Bounded({"subjects": ["*"], "events_per_day": 4})
    bounded.harness.now = NOW + timedelta(days=30)
    assert await bounded.status(creation("from-the-future")) == 201
    bounded.harness.now = NOW
    assert await bounded.status(creation()) == 201
    assert await bounded.status(command("modify", "/attributes/on", 1, name="from-the-future")) == 429
    bounded.now = NOW + timedelta(days=1)
    assert await bounded.status(command("modify", "/attributes/on", 1, name="from-the-future")) == 201


async def test_a_deletion_is_possible_after_any_changes_today() -> None:
    bounded = Bounded({"subjects": ["*"], "events_per_day": 2})
    assert await bounded.status(creation()) == 201
    assert await bounded.status(turn(1)) == 429
    assert await bounded.status(command("delete")) == 204


async def test_a_change_that_cannot_be_stored_is_not_counted() -> None:
    disk = Disk()
    bounded = Bounded({"namespaces": ["*"], "things": 1}, {"subjects": ["*"], "events_per_day": 2}, journal=disk)
    disk.full = True
    bounded.harness.deliver(creation())
    await until(lambda: bool(bounded.harness.postponed))
    assert bounded.uses() == {}
    disk.full = False
    await until(lambda: bounded.harness.store.commits.is_available)
    assert await bounded.status(creation()) == 201


async def test_a_creation_waits_while_the_folder_of_the_journal_is_moved_away(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir()
    bounded = Bounded(free=free_space, journal=Journal.open(folder / "journal.db"))
    folder.rename(elsewhere)
    bounded.harness.deliver(creation())
    await until(lambda: bounded.harness.postponed or bounded.harness.link.published)
    assert bounded.harness.link.published == []
    elsewhere.rename(folder)
    await until(lambda: bounded.harness.store.commits.is_available)
    assert await bounded.status(creation()) == 201


async def test_creators_are_stored_with_their_creations_and_forgotten_with_deletions() -> None:
    disk = Disk()
    bounded = Bounded({"subjects": ["*"], "things": 50}, journal=disk)
    before = disk.commits
    bounded.harness.deliver(*(creation(f"lamp-{number}") for number in range(20)))
    await bounded.harness.settled(20)
    assert disk.commits == before + 1
    await bounded.ask(command("delete", name="lamp-1"))
    named = bounded.harness.store.read(
        lambda it: it.execute("SELECT count(*) FROM creators WHERE type = 'thing'").fetchone()
    )
    assert named == (19,)


async def test_a_refused_change_leaves_no_trace() -> None:
    bounded = Bounded({"namespaces": ["*"], "bytes": 600})
    assert await bounded.status(creation()) == 201
    assert await bounded.status(turn("x" * 1000)) == 507
    assert (await bounded.ask(command("retrieve", "/attributes")))["status"] == 404
    assert await bounded.status(turn("x")) == 201


async def test_the_size_of_a_namespace_shrinks_with_its_things() -> None:
    bounded = Bounded({"namespaces": ["*"], "bytes": 1500})
    assert await bounded.status(creation()) == 201
    assert await bounded.status(turn("x" * 1000)) == 201
    assert await bounded.status(command("modify", "/attributes/more", "x" * 1000)) == 507
    assert await bounded.status(turn("")) == 204
    assert await bounded.status(command("modify", "/attributes/more", "x" * 1000)) == 201


async def test_a_count_equals_the_usage_added_by_decisions() -> None:
    bounded = Bounded(
        {"namespaces": ["*"], "things": 9, "policies": 9, "bytes": "1MiB"}, {"subjects": ["*"], "things": 9}
    )
    for name in ("a", "b", "c"):
        await bounded.ask(creation(name))
    await bounded.ask(command("modify", "/attributes/on", {"ü": [1, 2]}, name="a"))
    await bounded.ask(command("delete", name="b"))
    added = bounded.uses()
    await bounded.check.recount()
    assert bounded.uses() == added
    used = {(holder.value, quantity.value): count for (holder, _, quantity), count in added.items()}
    assert used["namespace", "things"] == used["subject", "things"] == 2
    assert used["namespace", "policies"] == 3


async def test_a_count_includes_concurrently_stored_changes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The count finds a thing decided before it; a thing stored before its queries is added once."""
    disk = Disk()
    bounded = Bounded({"namespaces": ["*"], "things": 9}, journal=disk)
    await bounded.ask(creation("a"))
    reading, may_continue = threading.Event(), threading.Event()
    count = creators.used_by_namespace

    def wait_and_count(connection: Any) -> list[creators.StoredUse]:
        reading.set()
        assert may_continue.wait(10)
        return count(connection)

    monkeypatch.setattr(quota_repository, "_COUNTS", ((QuotaHolder.NAMESPACE, wait_and_count),))
    disk.hold()
    bounded.harness.deliver(creation("b"))
    counting = asyncio.create_task(bounded.check.recount())
    await pause()
    bounded.harness.deliver(creation("c"))
    disk.release()
    await until(reading.is_set)
    bounded.harness.deliver(creation("d"))
    await bounded.harness.settled(4)
    may_continue.set()
    await counting
    assert bounded.uses() == {(QuotaHolder.NAMESPACE, "acme.site", Quantity.THINGS): 4}


async def test_the_use_of_a_day_survives_a_restart_and_ends_with_the_day() -> None:
    rule = {"subjects": ["*"], "events_per_day": 3, "bytes_per_day": "1MiB"}
    bounded = Bounded(rule)
    assert await bounded.status(creation()) == 201
    await bounded.check.keep()
    kept = bounded.uses()
    assert await bounded.status(turn(1)) == 201
    later = bounded.restarted(rule)
    await later.check.resume()
    assert later.uses() == kept, "a crash loses the use since it was kept last"
    await bounded.check.keep()
    later = bounded.restarted(rule)
    await later.check.resume()
    assert later.uses() == bounded.uses()
    later.now += timedelta(days=1)
    await later.check.resume()
    assert later.uses() == {}


async def test_use_that_cannot_be_stored_is_stored_later_and_that_of_other_days_is_deleted() -> None:
    disk = Disk()
    rule = {"subjects": ["*"], "events_per_day": 300, "bytes_per_day": "1MiB"}
    bounded = Bounded(rule, journal=disk)
    await bounded.ask(creation())
    await bounded.check.keep()
    bounded.now += timedelta(days=1)
    await bounded.ask(turn(1))
    disk.full = True
    with pytest.raises(StoreUnavailable):
        await bounded.check.keep()
    disk.full = False
    await until(lambda: bounded.harness.store.commits.is_available)
    await bounded.check.keep()
    rows = bounded.harness.store.read(lambda it: it.execute("SELECT day, quantity, used FROM quota_days").fetchall())
    size = bounded.uses()[QuotaHolder.SUBJECT, OWNER, Quantity.BYTES_PER_DAY]
    assert set(rows) == {("2030-01-16", "events_per_day", 1), ("2030-01-16", "bytes_per_day", size)}


async def test_the_use_of_many_subjects_is_stored_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Bounded({"subjects": ["*"], "events_per_day": 300})
    for number in range(1_000):
        bounded.quotas.take({(QuotaHolder.SUBJECT, f"d:{number}", Quantity.EVENTS_PER_DAY): 1}, "2030-01-15")
    steps: list[int] = []
    store = quota_days.store

    def note(connection: Any, day: str, uses: list[quota_days.DailyUse], forgotten: int) -> None:
        steps.append(len(uses))
        store(connection, day, uses, forgotten)

    monkeypatch.setattr(quota_days, "store", note)
    await bounded.check.keep()
    assert steps == [200] * 5
    await bounded.check.keep()
    assert len(steps) == 5, "nothing has changed"


async def test_readiness_shows_quotas_of_which_nine_tenths_are_used() -> None:
    bounded = Bounded({"namespaces": ["*"], "things": 1})
    assert bounded.check.nearly_used() == []
    await bounded.ask(creation())
    assert bounded.check.nearly_used() == ["the namespace 'acme.site' uses 1 of its quota things of 1"]


async def test_metrics_show_the_fullest_quota_and_how_many_are_nearly_full() -> None:
    bounded = Bounded({"namespaces": ["*"], "things": 10}, {"subjects": ["*"], "events_per_day": 2})
    await bounded.ask(creation())
    readings = {reading.name: dict(reading.values) for reading in bounded.check.figures()}
    assert readings == {
        "connectivity_quota_highest_use": {("namespace", "things"): 0.1, ("subject", "events_per_day"): 1.0},
        "connectivity_quotas_nearly_used": {("namespace", "things"): 0.0, ("subject", "events_per_day"): 1.0},
    }


async def test_with_little_space_on_the_disk_only_creations_are_refused() -> None:
    space = 100
    bounded = Bounded(low_space=50, free=lambda _: space)
    assert await bounded.status(creation("a")) == 201
    space = 49
    refused = await bounded.ask(creation("b"))
    assert (refused["status"], refused["value"]["error"]) == (507, "things:storage.low")
    assert "found 49 bytes free on the disk, expected at least 50" in refused["value"]["message"]
    assert await bounded.status(command("modify", "/attributes/on", 1, name="a")) == 201
    assert await bounded.status(command("modify", "/policyId", "acme.site:a", name="a")) == 204
    assert (await bounded.ask(policy_creation("p")))["value"]["error"] == "policies:storage.low"
