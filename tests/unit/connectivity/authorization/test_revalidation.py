"""Who is judged again, and when: connectivity.authorization.revalidation."""

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
from tests.support.twin_world import policy, thing

A, B = policy("acme:a"), policy("acme:b")
LAMP = thing("acme:lamp")
NOON = "2030-01-15T12:00:00.000000Z"


def change(time: str) -> Change:
    return Change((Event(LAMP, 2, time, "modified", "/attributes", b"{}", b"{}"),), ())


class BanRegistry(AccessRevalidation[str]):
    """Somebody is forgotten who is banned."""

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

    def come(self, who: str, *upon: EntityId) -> None:
        self.upon[who] = frozenset(upon)
        self.note(who)


@pytest.fixture
def authorities() -> PolicyChangeNotifier:
    return PolicyChangeNotifier()


@pytest.fixture
def court(authorities: PolicyChangeNotifier) -> BanRegistry:
    return BanRegistry(authorities)


def test_authorities_are_watched_while_there_is_anybody(authorities: PolicyChangeNotifier, court: BanRegistry) -> None:
    assert len(authorities._listeners) == 0
    court.come("ada", A)
    court.come("eve", A)
    court.forget("ada")
    assert len(authorities._listeners) == 1
    assert ("ada" in court, "eve" in court) == (False, True)
    court.forget("eve")
    assert len(authorities._listeners) == 0


def test_a_change_has_those_judged_whom_it_may_concern(authorities: PolicyChangeNotifier, court: BanRegistry) -> None:
    court.come("ada", A)
    court.come("eve", B)
    authorities.notify([], [A])
    assert court.judged == ["ada"]
    court.banned.add("eve")
    authorities.notify([], [B])
    authorities.notify([], [B])
    assert court.judged == ["ada", "eve"]


def test_a_thing_concerns_those_alone_for_whom_it_names_another_policy_now(
    authorities: PolicyChangeNotifier, court: BanRegistry
) -> None:
    court.come("ada", LAMP, A)
    authorities.notify([], [LAMP])
    assert court.judged == []
    court.upon["ada"] = frozenset({LAMP, B})
    authorities.notify([], [LAMP])
    assert court.judged == ["ada"]
    authorities.notify([], [A])
    assert court.judged == ["ada"]


def test_who_expires_is_judged_before_anything_newer_is_sent(
    authorities: PolicyChangeNotifier, court: BanRegistry
) -> None:
    court.expires = {"ada": NOON, "eve": "2030-01-15T13:00:00.000000Z"}
    for who in ("ada", "bob", "eve"):
        court.come(who, A)
    authorities.notify([change("2030-01-15T11:59:59.999999Z")])
    assert court.judged == []
    del court.expires["ada"]
    authorities.notify([change(NOON)])
    assert court.judged == ["ada"]
    court.forget("eve")
    court.come("bob", A)
    authorities.notify([change("2030-01-15T14:00:00.000000Z")])
    assert court.judged == ["ada"], "nobody else expires"


def test_who_has_expired_is_judged_within_a_second_though_nothing_changes(
    court: BanRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the end of a subscription would tell that somebody has changed something."""
    court.expires = {"ada": NOON, "eve": "2030-01-15T13:00:00.000000Z"}
    for who in ("ada", "eve"):
        court.come(who, A)
    monkeypatch.setattr(court._all, "turn", lambda _: [])
    court.sweep()
    assert court.judged == []
    court.time = "2030-01-15T12:00:00Z"
    del court.expires["ada"]
    court.sweep()
    court.sweep()
    assert court.judged == ["ada"]


def test_times_of_expiry_are_kept_once_however_often_they_are_noted(court: BanRegistry) -> None:
    """Each is noted again about once a minute, and sessions come and go for years before a subject expires."""
    court.expires = {f"peer-{number}": NOON for number in range(500)} | {"ada": NOON}
    court.come("ada", A)
    for number in range(500):
        court.come(f"peer-{number}", A)
        court.note("ada")
        court.forget(f"peer-{number}")
    assert len(court._expiring) < 100
    for number in range(500):
        court.expires["ada"] = f"2030-01-15T12:00:{number % 60:02}.000000Z"
        court.note("ada")
    assert len(court._expiring) < 100
    court._changed((), court.expires["ada"])
    assert court.judged == ["ada"]


def test_everybody_is_judged_in_a_round(court: BanRegistry) -> None:
    for number in range(90):
        court.come(str(number), A)
    for _ in range(ROUND):
        court.sweep()
    assert set(court.judged) == set(map(str, range(90)))


def test_a_failed_check_is_repeated_with_the_next_ones(authorities: PolicyChangeNotifier, court: BanRegistry) -> None:
    for who in ("ada", "eve", "joe"):
        court.come(who, LAMP, A)
    court.is_unreadable = True
    authorities.notify([], [LAMP])
    court.sweep()
    court.forget("joe")
    assert court.judged == []
    court.is_unreadable = False
    court.sweep()
    assert sorted(court.judged) == ["ada", "eve"]
    court.sweep()
    assert len(court.judged) == 2


def test_b10_a_damaged_state_delays_the_checks_of_no_other(
    court: BanRegistry, authorities: PolicyChangeNotifier
) -> None:
    for name in ("ada", "bob", "eve"):
        court.come(name, A)
    court.damaged, court.banned = {"bob"}, {"ada", "eve"}
    with capture_logs() as lines:
        court._changed({A}, NOON)
    assert ("ada" in court, "bob" in court, "eve" in court) == (False, True, False)
    assert [(line["event"], line["count"]) for line in lines] == [("permission checks postponed", 1)]
