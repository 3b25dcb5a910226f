"""What has changed who may do what, and who is told of it."""

from __future__ import annotations

import pytest

from connectivity.authorization.revalidation import PolicyChangeNotifier, changed_entities
from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.records import Change
from tests.support.twin_world import NOW, policy, thing

A, LAMP = policy("acme:a"), thing("acme:lamp")


def change(entity: EntityId, action: str = "modified", path: str = "/") -> Change:
    return Change((Event(entity, 2, NOW, action, path, b"{}", b"{}"),), ())


@pytest.mark.parametrize(
    ("entity", "action", "path", "is_one"),
    [
        (A, "modified", "/entries/VIEW", True),
        (A, "deleted", "/", True),
        (LAMP, "created", "/", True),
        (LAMP, "merged", "/", True),
        (LAMP, "modified", "/policyId", True),
        (LAMP, "modified", "/attributes/policyId", False),
        (LAMP, "deleted", "/features", False),
    ],
)
def test_policies_and_what_may_have_another_one_are_found_among_changes(
    entity: EntityId, action: str, path: str, is_one: bool
) -> None:
    attribute = change(thing("acme:other"), path="/attributes/a")
    assert changed_entities([attribute, change(entity, action, path)]) == ({entity} if is_one else set())


def test_anyone_who_watches_is_reported_until_he_leaves() -> None:
    told: list[object] = []
    watched = PolicyChangeNotifier()
    watched.notify([change(A)])
    watched.watch(told.append)
    watched.notify([change(A), change(LAMP)])
    watched.notify([change(LAMP, path="/attributes")])
    watched.notify([], [LAMP])
    assert told == [{A, LAMP}, {LAMP}]
    watched.leave(told.append)
    watched.leave(told.append)
    watched.notify([change(A)])
    assert len(told) == 2
    assert repr(watched) == "<Authorities, watched by 0>"


def test_a_mistake_of_one_who_is_reported_costs_others_nothing() -> None:
    def fail(_: object) -> None:
        raise ValueError("a mistake")

    told: list[object] = []
    watched = PolicyChangeNotifier()
    watched.watch(fail)
    watched.watch(told.append)
    watched.notify([change(A)])
    assert told == [{A}]
