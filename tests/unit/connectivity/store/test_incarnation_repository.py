"""Deletions and references as decided, durable or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.store.store import Store
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import StoreError
from spark_store.history.replay import evolve
from spark_store.records import Change, Incarnation
from tests.support.in_process.service import Disk
from tests.support.journal_entries import timestamp

LAMP, FAN = (EntityId(EntityType.THING, "acme", name) for name in ("lamp", "fan"))
POLICY, OTHER = (EntityId(EntityType.POLICY, "acme", name) for name in ("pol", "other"))
NAMING = {"policyId": "acme:pol"}
THEN = b'{"policies":["acme:pol"],"entries":{}}'


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def store(disk: Disk) -> Store:
    return Store(disk)


def change(store: Store, entity: EntityId, action: str, value: Any = None, path: str = "/") -> Change:
    before = store.snapshot(entity)
    revision = 1 if before is None else before.revision + 1
    raw = None if action == "deleted" else json.dumps(value).encode()
    event = Event(entity, revision, timestamp(revision), action, path, raw, b"{}")
    is_naming = entity.type is EntityType.THING and (action == "created" or path == "/policyId")
    return Change(
        (event,),
        (evolve(before, event),),
        permissions=THEN if action == "deleted" else None,
        is_reference=is_naming or None,
    )


async def test_a_deletion_is_known_before_and_after_it_is_durable(store: Store, disk: Disk) -> None:
    await store.commits.submit([change(store, LAMP, "created", NAMING)])
    await store.commits.submit([change(store, LAMP, "deleted")])
    disk.hold()
    store.commits.submit([change(store, LAMP, "created", NAMING)])
    store.commits.submit([change(store, LAMP, "deleted")])
    durable = store.commits.submit([change(store, LAMP, "created", NAMING)])
    expected = [Incarnation(3, 4, THEN), Incarnation(1, 2, THEN)]
    assert store.lives.ended(LAMP) == expected
    disk.release()
    await durable
    assert store.lives.ended(LAMP) == expected
    assert store.lives.ended(FAN) == []
    await store.close()


async def test_a_deletion_that_cannot_be_stored_is_forgotten(store: Store, disk: Disk) -> None:
    await store.commits.submit([change(store, LAMP, "created", NAMING)])
    disk.rejected.add(b"bad")
    deleting = change(store, LAMP, "deleted")
    bad = change(store, FAN, "created", {"bad": 1})
    with pytest.raises(ValueError, match="cannot be stored"):
        await store.commits.submit([deleting, bad])
    assert store.lives.ended(LAMP) == []
    disk.full = True
    with pytest.raises(StoreError):
        await store.commits.submit([change(store, LAMP, "deleted")])
    assert store.lives.ended(LAMP) == []
    disk.full = False
    await store.close()


async def test_references_are_counted_once_between_a_commit_and_its_report(store: Store, disk: Disk) -> None:
    await store.commits.submit([change(store, LAMP, "created", NAMING), change(store, FAN, "created", NAMING)])
    deleting = change(store, LAMP, "deleted")
    store.commits.stage(deleting)
    disk.append([deleting])
    assert store.lives.references(POLICY) == (1, 0)
    await store.close()


async def test_references_include_what_is_not_durable_yet(store: Store, disk: Disk) -> None:
    await store.commits.submit(
        [change(store, LAMP, "created", NAMING), change(store, OTHER, "created", {"entries": {}})]
    )
    disk.hold()
    store.commits.submit([change(store, FAN, "created", NAMING)])
    store.commits.submit([change(store, OTHER, "modified", {"acme:pol": {}}, "/imports")])
    assert store.lives.references(POLICY) == (2, 1)
    store.commits.submit([change(store, LAMP, "modified", "acme:other", "/policyId")])
    store.commits.submit([change(store, FAN, "deleted"), change(store, OTHER, "deleted")])
    assert store.lives.references(POLICY) == (0, 0)
    durable = store.commits.barrier()
    disk.release()
    await durable
    assert store.lives.references(POLICY) == (0, 0)
    assert store.lives.references(OTHER) == (1, 0)
    await store.close()


async def test_an_erasure_hides_earlier_incarnations_before_it_is_durable(store: Store, disk: Disk) -> None:
    await store.commits.submit([change(store, LAMP, "created", NAMING)])
    await store.commits.submit([change(store, LAMP, "deleted")])
    disk.hold()
    durable = store.commits.execute(lambda _: None, forgets=store.snapshot(LAMP))
    assert store.lives.ended(LAMP) == []
    disk.release()
    await durable
    await store.close()
