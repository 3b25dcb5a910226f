"""Repeated permission checks, and their times: connectivity.authorization.revalidation."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import pytest
from structlog.testing import capture_logs

from connectivity.authorization.revalidation import ROUND, AccessDependencies, AccessRevalidation, PolicyChangeNotifier
from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.errors import StateDamaged, StoreUnavailable
from spark_store.records import Change
from tests.support.twin_harness import policy, thing

A, B = policy("acme:a"), policy("acme:b")
LAMP = thing("acme:lamp")
NOON = "2030-01-15T12:00:00.000000Z"


def change(time: str) -> Change:
    return Change((Event(LAMP, 2, time, "modified", "/attributes", b"{}", b"{}"),), ())


class BanRegistry(AccessRevalidation[str]):
    """An access revalidation that forgets banned subjects."""

    def __init__(self, authorities: PolicyChangeNotifier) -> None:
        super().__init__(authorities, lambda: datetime.fromisoformat(self.time))
        self.time = "2030-01-15T11:00:00Z"
        self.upon: dict[str, frozenset[EntityId]] = {}
        self.expires: dict[str, str] = {}
        self.banned: set[str] = set()
        self.judged: list[str] = []
        self.is_unreadable = False
        self.damaged: set[str] = set()

    def concerning(self, judged: str) -> AccessDependencies:
        if self.is_unreadable:
            raise StoreUnavailable("a page cannot be read")
        return AccessDependencies(self.upon[judged], self.expires.get(judged))

    def recheck(self, found: Collection[str]) -> None:
        for judged in found:
            if self.is_unreadable:
                raise StoreUnavailable("a page cannot be read")
            if judged in self.damaged:
                raise StateDamaged("a state cannot be read")
            self.judged.append(judged)
            if judged in self.banned:
                self.forget(judged)
            else:
                self.note(judged)

    def judge_by(self, who: str, *upon: EntityId) -> None:
        self.upon[who] = frozenset(upon)
        self.note(who)


@pytest.fixture
def authorities() -> PolicyChangeNotifier:
    return PolicyChangeNotifier()


@pytest.fixture
def bans(authorities: PolicyChangeNotifier) -> BanRegistry:
    return BanRegistry(authorities)


def test_policy_changes_are_watched_while_anybody_depends_on_them(
    authorities: PolicyChangeNotifier, bans: BanRegistry
) -> None:
    assert len(authorities._listeners) == 0
    bans.judge_by("ada", A)
    bans.judge_by("eve", A)
    bans.forget("ada")
    assert len(authorities._listeners) == 1
    assert ("ada" in bans, "eve" in bans) == (False, True)
    bans.forget("eve")
    assert len(authorities._listeners) == 0


def test_a_policy_change_checks_only_its_dependents(authorities: PolicyChangeNotifier, bans: BanRegistry) -> None:
    bans.judge_by("ada", A)
    bans.judge_by("eve", B)
    authorities.notify([], [A])
    assert bans.judged == ["ada"]
    bans.banned.add("eve")
    authorities.notify([], [B])
    authorities.notify([], [B])
    assert bans.judged == ["ada", "eve"]


def test_a_thing_change_checks_only_dependents_with_another_policy(
    authorities: PolicyChangeNotifier, bans: BanRegistry
) -> None:
    bans.judge_by("ada", LAMP, A)
    authorities.notify([], [LAMP])
    assert bans.judged == []
    bans.upon["ada"] = frozenset({LAMP, B})
    authorities.notify([], [LAMP])
    assert bans.judged == ["ada"]
    authorities.notify([], [A])
    assert bans.judged == ["ada"]


def test_a_thing_change_checks_dependents_whose_policies_import_each_other(
    authorities: PolicyChangeNotifier, bans: BanRegistry
) -> None:
    """The thing may have moved from one of them to the other: the dependencies stay the same."""
    bans.judge_by("ada", A, B, LAMP)
    authorities.notify([], [LAMP])
    assert bans.judged == ["ada"]


def test_an_expiring_subject_is_checked_before_anything_newer_is_sent(
    authorities: PolicyChangeNotifier, bans: BanRegistry
) -> None:
    bans.expires = {"ada": NOON, "eve": "2030-01-15T13:00:00.000000Z"}
    for who in ("ada", "bob", "eve"):
        bans.judge_by(who, A)
    authorities.notify([change("2030-01-15T11:59:59.999999Z")])
    assert bans.judged == []
    del bans.expires["ada"]
    authorities.notify([change(NOON)])
    assert bans.judged == ["ada"]
    bans.forget("eve")
    bans.judge_by("bob", A)
    authorities.notify([change("2030-01-15T14:00:00.000000Z")])
    assert bans.judged == ["ada"], "nobody else expires"


def test_an_expired_subject_is_checked_within_a_second_without_a_change(
    bans: BanRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the end of a subscription would reveal a change."""
    bans.expires = {"ada": NOON, "eve": "2030-01-15T13:00:00.000000Z"}
    for who in ("ada", "eve"):
        bans.judge_by(who, A)
    monkeypatch.setattr(bans._all, "turn", lambda _: [])
    bans.sweep()
    assert bans.judged == []
    bans.time = "2030-01-15T12:00:00Z"
    del bans.expires["ada"]
    bans.sweep()
    bans.sweep()
    assert bans.judged == ["ada"]


def test_times_of_expiry_are_kept_once_after_repeated_notes(bans: BanRegistry) -> None:
    """Each time is noted again about once a minute, and sessions end long before a subject expires."""
    bans.expires = {f"peer-{number}": NOON for number in range(500)} | {"ada": NOON}
    bans.judge_by("ada", A)
    for number in range(500):
        bans.judge_by(f"peer-{number}", A)
        bans.note("ada")
        bans.forget(f"peer-{number}")
    assert len(bans._expiring) < 100
    for number in range(500):
        bans.expires["ada"] = f"2030-01-15T12:00:{number % 60:02}.000000Z"
        bans.note("ada")
    assert len(bans._expiring) < 100
    bans._changed((), bans.expires["ada"])
    assert bans.judged == ["ada"]


def test_all_names_are_checked_within_one_round(bans: BanRegistry) -> None:
    for number in range(90):
        bans.judge_by(str(number), A)
    for _ in range(ROUND):
        bans.sweep()
    assert set(bans.judged) == set(map(str, range(90)))


def test_a_failed_check_is_repeated_with_the_next_ones(authorities: PolicyChangeNotifier, bans: BanRegistry) -> None:
    for who in ("ada", "eve", "joe"):
        bans.judge_by(who, LAMP, A)
    bans.is_unreadable = True
    authorities.notify([], [LAMP])
    bans.sweep()
    bans.forget("joe")
    assert bans.judged == []
    bans.is_unreadable = False
    bans.sweep()
    assert sorted(bans.judged) == ["ada", "eve"]
    bans.sweep()
    assert len(bans.judged) == 2


def test_b10_a_damaged_state_delays_the_checks_of_no_other(
    bans: BanRegistry, authorities: PolicyChangeNotifier
) -> None:
    for name in ("ada", "bob", "eve"):
        bans.judge_by(name, A)
    bans.damaged, bans.banned = {"bob"}, {"ada", "eve"}
    with capture_logs() as lines:
        bans._changed({A}, NOON)
    assert ("ada" in bans, "bob" in bans, "eve" in bans) == (False, True, False)
    assert [(line["event"], line["count"]) for line in lines] == [("permission checks postponed", 1)]
