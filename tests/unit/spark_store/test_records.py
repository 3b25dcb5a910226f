"""Names of entities in journal and lake."""

from __future__ import annotations

import pytest

from mappings.ids import EntityId, EntityType, namespace_of
from spark_store.records import entity_of
from tests.support.table import each_row


@pytest.mark.parametrize(
    ("id", "namespace", "name"),
    [("acme:lamp", "acme", "lamp"), ("acme:a:b", "acme", "a:b"), (":a", "", "a"), ("stream", "", "stream")],
)
def test_a_namespace_is_the_text_before_the_first_colon(id: str, namespace: str, name: str) -> None:
    assert namespace_of(id) == namespace
    assert entity_of("thing", id) == EntityId(EntityType.THING, namespace, name)


@each_row("type", list(EntityType))
@each_row("id", ["acme:lamp", ":lamp", "acme:hall/tank/0"])
def test_an_entity_is_known_by_its_type_and_its_whole_id(type: EntityType, id: str) -> None:
    assert entity_of(type.value, id).id == id
    assert entity_of(type.value, id).type is type
