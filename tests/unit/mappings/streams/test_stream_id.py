"""IDs of streams: their parts, and the entity of a partition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.ids import EntityId, EntityType
from mappings.streams.stream_id import (
    ConfiguredStream,
    PolicyStream,
    Stream,
    ThingStream,
    parse_partition_name,
    parse_stream_id,
    partition_id,
    partition_name,
    resource_of,
    stream_id_of,
)
from tests.support.dice import examples
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme", "lamp-7")
LAMPS = EntityId(EntityType.POLICY, "acme", "lamps")


@each_row(
    ("stream", "place"),
    [
        ("tank", ConfiguredStream("tank")),
        ("site/tank", ConfiguredStream("site/tank")),
        ("thingsome", ConfiguredStream("thingsome")),
        ("things/acme:lamp-7", ThingStream(LAMP)),
        ("policies/acme:lamps", PolicyStream(LAMPS)),
        ("things/lamp-7", None),
        ("things/", None),
        ("policies/acme:a/b", None),
        ("things/1acme:lamp", None),
    ],
)
def test_an_id_names_a_stream_or_a_twin(stream: str, place: Stream | None) -> None:
    assert parse_stream_id(stream) == place
    if isinstance(place, ThingStream | PolicyStream):
        assert stream_id_of(place.entity) == stream


@settings(max_examples=examples(100), deadline=None)
@given(st.text(min_size=1, max_size=20), st.integers(0, 255))
def test_the_name_of_a_partition_is_read_back(stream: str, partition: int) -> None:
    assert parse_partition_name(partition_name(stream, partition)) == (stream, partition)
    assert parse_partition_name(partition_id(stream, partition).id) == (stream, partition)


@each_row("name", ["", "tank", "/0", "tank/", "tank/x", "tank/256", "tank/00", "tank/-1", "tank/٣", "t/9999"])
def test_parsing_an_invalid_partition_name_returns_no_partition(name: str) -> None:
    assert parse_partition_name(name) is None


def test_a_policy_knows_a_stream_by_its_resource() -> None:
    assert resource_of("site/tank") == "stream:/site/tank"
