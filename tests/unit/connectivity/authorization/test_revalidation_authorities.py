"""Changes of permissions, and the watchers that are notified of them."""

from __future__ import annotations

import pytest

from connectivity.authorization.revalidation import PolicyChangeNotifier, changed_entities
from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.records import Change
from tests.support.twin_harness import NOW, policy, thing

A, LAMP = policy("acme:a"), thing("acme:lamp")


def change(entity: EntityId, action: str = "modified", path: str = "/", time: str = NOW) -> Change:
    return Change((Event(entity, 2, time, action, path, b"{}", b"{}"),), ())


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
def test_changes_to_policies_or_policy_references_are_found_among_changes(
    entity: EntityId, action: str, path: str, is_one: bool
) -> None:
    attribute = change(thing("acme:other"), path="/attributes/a")
    assert changed_entities([attribute, change(entity, action, path)]) == ({entity} if is_one else set())


def test_a_watcher_is_notified_until_it_leaves() -> None:
    notifications: list[tuple[object, str]] = []

    def record(found: object, newest: str) -> None:
        notifications.append((found, newest))

    watched = PolicyChangeNotifier()
    watched.notify([change(A)])
    watched.watch(record)
    watched.notify([change(A, time="2030"), change(LAMP, time="2031")])
    watched.notify([change(LAMP, path="/attributes", time="2032")])
    watched.notify([], [LAMP])
    assert notifications == [({A, LAMP}, "2031"), (set(), "2032"), ({LAMP}, "")]
    watched.leave(record)
    watched.leave(record)
    watched.notify([change(A)])
    assert len(notifications) == 3
    assert len(watched._listeners) == 0


def test_an_error_in_one_watcher_does_not_affect_the_others() -> None:
    def fail(_: object, __: str) -> None:
        raise ValueError("a mistake")

    notifications: list[object] = []
    watched = PolicyChangeNotifier()
    watched.watch(fail)
    watched.watch(lambda found, _: notifications.append(found))
    watched.notify([change(A)])
    assert notifications == [{A}]
