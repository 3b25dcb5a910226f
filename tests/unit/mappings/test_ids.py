"""The grammar of entity IDs, and generated IDs that cannot be guessed."""

from __future__ import annotations

import uuid

import pytest

from mappings.ids import (
    EntityId,
    EntityType,
    is_namespace,
    new_correlation_id,
    new_subscription_id,
    parse_entity_id,
    partition_entity,
    utf16_length,
)
from tests.support.table import each_row

THING = EntityType.THING


@pytest.mark.parametrize(
    ("text", "namespace", "name"),
    [
        ("acme.site:lamp-7", "acme.site", "lamp-7"),
        (":lamp", "", "lamp"),
        ("a-b.c_d:x", "a-b.c_d", "x"),
        ('acme:a:b c#%?*,"', "acme", 'a:b c#%?*,"'),
        ("acme:Łodź-東京", "acme", "Łodź-東京"),
    ],
)
def test_an_id_is_split_at_its_first_colon(text: str, namespace: str, name: str) -> None:
    assert parse_entity_id(THING, text) == EntityId(THING, namespace, name)


@each_row(
    "text",
    ["", "lamp", "acme:", "acme.7x:y", "acme..x:y", ".acme:y", "acme:a/b", "acme:ä", "acme:a\n", "acme:\x7f", "7:x"],
)
def test_parsing_an_invalid_thing_id_returns_no_entity_id(text: str) -> None:
    assert parse_entity_id(THING, text) is None


def test_a_namespace_is_valid_only_in_the_id_syntax() -> None:
    assert all(map(is_namespace, ("acme", "acme.plant", "a-b.c_d", "")))
    assert not any(map(is_namespace, ("acme.*", "acme plant", "acme.7x", "acme:plant", "acme.")))


def test_an_id_has_at_most_256_utf_16_units() -> None:
    assert parse_entity_id(THING, "a:" + "x" * 254) is not None
    assert parse_entity_id(THING, "a:" + "x" * 255) is None
    assert parse_entity_id(THING, "a:" + "😀" * 127) is not None
    assert parse_entity_id(THING, "a:" + "😀" * 127 + "x") is None


def test_a_character_outside_the_basic_plane_has_utf16_length_two() -> None:
    assert utf16_length("a😀") == 3


def test_an_entity_reads_as_its_id() -> None:
    assert str(EntityId(EntityType.POLICY, "acme", "p")) == "acme:p"
    assert EntityType.POLICY.group == "policies"


@pytest.mark.parametrize(
    ("name", "namespace"), [("tank-9/0", ""), ("acme.site:hall/tank/12", "acme.site"), ("a:b:c/0", "a"), (":a/0", "")]
)
def test_the_name_of_a_partition_is_its_whole_id(name: str, namespace: str) -> None:
    entity = partition_entity(name)
    assert entity == EntityId(EntityType.STREAM, namespace, name) == parse_entity_id(EntityType.STREAM, name)
    assert (str(entity), entity.id) == (name, name)
    assert EntityType.STREAM.group == "streams"


@each_row("text", ["", "tank", "/0", "tank/", "tank/x", "tank/00", "tank/-1", "tank/1000"])
def test_parsing_an_invalid_partition_name_returns_no_entity_id(text: str) -> None:
    assert parse_entity_id(EntityType.STREAM, text) is None


def test_ids_are_made_of_128_random_bits_and_safe_in_a_url() -> None:
    made = {new_subscription_id() for _ in range(100)}
    assert len(made) == 100
    assert all(len(key) == 22 and key.replace("-", "").replace("_", "").isalnum() for key in made)
    assert new_correlation_id() != new_correlation_id()


def test_a_subscription_id_is_no_option_of_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators give its first characters to a command."""
    made = iter(("-k3Vd9QpAk3Vd9QpAk3Vd9", "k3Vd9QpAk3Vd9QpAk3Vd9Q"))
    monkeypatch.setattr("mappings.ids.secrets.token_urlsafe", lambda _: next(made))
    assert new_subscription_id() == "k3Vd9QpAk3Vd9QpAk3Vd9Q"


def test_a_correlation_id_is_a_random_uuid() -> None:
    for _ in range(64):
        made = uuid.UUID(text := new_correlation_id())
        assert (str(made), made.version, made.variant) == (text, 4, uuid.RFC_4122)
