"""Metadata of the parts of a thing, as conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from connectivity.twins import metadata as module
from connectivity.twins.context import TwinLimits
from mappings.ids import EntityId, EntityType
from mappings.model.json_pointer import Segments, format_pointer
from mappings.model.metadata import without_changes
from mappings.model.signals import Event
from spark_store.history.replay import StateFold
from spark_store.journal.journal import Journal
from spark_store.records import Change
from tests.support.cpu_budget import at_most
from tests.support.replayed import fold
from tests.support.table import each_row
from tests.support.twin_harness import POLICY, VIEWER, TwinHarness, entry, granting, last, revoking, thing, twin_harness


def metadata_entry(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def metadata(harness: TwinHarness, fields: str = "_metadata", **more: Any) -> Any:
    return harness.get(fields=fields, **more).get("_metadata")


def test_case_88_metadata_is_put_beside_an_attribute_and_goes_with_it() -> None:
    harness = twin_harness()
    assert harness.status("modify", "/attributes/a", 5, put_metadata=[metadata_entry("unit", "K")]) == 201
    assert last(harness) == ("created", "/attributes/a", 5, 2)
    assert metadata(harness) == {"attributes": {"a": {"unit": "K"}}}
    assert "_metadata" not in harness.get()
    assert harness.status("delete", "/attributes/a") == 204
    assert metadata(harness) == {"attributes": {}}
    assert harness.status("delete", "/attributes") == 204
    assert metadata(harness) == {}
    both = {"put_metadata": [metadata_entry("unit", "K")], "get_metadata": "unit"}
    assert harness.refused("modify", "/attributes/a", 5, **both) == (400, "things:metadata.headersconflict")


@each_row(
    ("action", "path", "value", "key", "found"),
    [
        (
            "modify",
            "/attributes",
            {"x": {"y": 1}, "z": [2], "e": {}},
            "*/k",
            {"attributes": {"x": {"y": {"k": 7}}, "z": {"k": 7}}},
        ),
        ("modify", "/attributes/a", 1, "*/k", {"attributes": {"a": {"k": 7}}}),
        ("modify", "/attributes", {"x": {"y": 1}}, "/x/y/k", {"attributes": {"x": {"y": {"k": 7}}}}),
        (
            "merge",
            "/",
            {"attributes": {"x": 1, "gone": None, "{{ ~q.*~ }}": None}},
            "*/k",
            {"attributes": {"x": {"k": 7}}},
        ),
        (
            "modify",
            "/features",
            {"f": {"properties": {"p": 1, "q": {"r": 2}}}, "g": {}},
            "*/properties/*/k",
            {"features": {"f": {"properties": {"p": {"k": 7}, "q": {"k": 7}}}}},
        ),
        ("merge", "/attributes", {"x": 1, "gone": None}, "gone/k", {"attributes": {"gone": {"k": 7}}}),
        ("merge", "/", {"attributes": {"x": 1, "gone": None}}, "attributes/*/k", {"attributes": {"x": {"k": 7}}}),
        ("modify", "/features", {"f": {}}, "*/desiredProperties/*/k", None),
        (
            "modify",
            "/",
            {"attributes": {"x": 1}},
            "*/k",
            {"attributes": {"x": {"k": 7}}, "policyId": {"k": 7}, "thingId": {"k": 7}},
        ),
    ],
)
def test_a_wildcard_in_a_metadata_key_matches_the_written_fields(
    action: str, path: str, value: Any, key: str, found: Any
) -> None:
    harness = twin_harness()
    assert harness.status(action, path, value, put_metadata=[metadata_entry(key, 7)]) < 300
    assert metadata(harness) == found


def test_metadata_stays_through_changes_of_the_value_and_through_a_whole_put() -> None:
    harness = twin_harness(attributes={"a": 1, "b": 2})
    harness.send("modify", "/attributes/a", 1, put_metadata=[metadata_entry("unit", "K")])
    harness.send("modify", "/attributes/a", 3)
    harness.send("modify", "/", {"attributes": {"a": 4}})
    harness.send("merge", "/", {"attributes": {"c": 1}})
    assert metadata(harness) == {"attributes": {"a": {"unit": "K"}}}
    harness.send("modify", "/", {"attributes": {"b": 4}}, put_metadata=[metadata_entry("attributes/b/unit", "s")])
    assert metadata(harness) == {"attributes": {"b": {"unit": "s"}}}
    harness.send("delete")
    harness.send("create", "/", {"policyId": POLICY, "attributes": {"b": 1}})
    assert metadata(harness) is None


def test_a_delete_pattern_of_a_merge_removes_only_the_metadata_of_matching_fields() -> None:
    harness = twin_harness(attributes={"a": 1}, features={})
    harness.send("modify", "/attributes/a", 1, put_metadata=[metadata_entry("unit", "K")])
    harness.send("merge", "/", {"{{ ~f.*~ }}": None, "{{ ~_.*~ }}": None})
    assert metadata(harness) == {"attributes": {"a": {"unit": "K"}}}
    harness.send("merge", "/attributes", {"{{ ~.*~ }}": None})
    assert metadata(harness) == {"attributes": {}}


def test_a_part_that_is_overwritten_with_an_empty_object_loses_all_its_metadata() -> None:
    harness = twin_harness(features={"f": {"properties": {"p": {"q": 1}, "r": 1}}})
    entries = [metadata_entry("q/k", 1), metadata_entry("unit", "K")]
    harness.send("modify", "/features/f/properties/p", {"q": 1}, put_metadata=entries)
    harness.send("modify", "/features/f/properties/p", {}, put_metadata=[metadata_entry("unit", "m")])
    assert metadata(harness) == {"features": {"f": {"properties": {"p": {}}}}}
    harness.send("modify", "/attributes", {})
    assert metadata(harness) == {"attributes": {}, "features": {"f": {"properties": {"p": {}}}}}
    harness.send("modify", "/features", {})
    assert metadata(harness) == {"attributes": {}, "features": {}}


def test_a_reader_of_some_parts_does_not_see_remains_of_the_metadata_of_others() -> None:
    harness = twin_harness(attributes={"a": 1, "b": 2})
    harness.write_policy(
        {"VIEW": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/a": revoking("READ")})}
    )
    harness.send("modify", "/attributes/a", 1, put_metadata=[metadata_entry("unit", "K")])
    harness.send("delete", "/attributes/a")
    assert metadata(harness) == {"attributes": {}}
    assert metadata(harness, by=[VIEWER]) is None


def test_metadata_that_would_replace_that_of_a_part_by_a_value_is_not_set() -> None:
    harness = twin_harness()
    harness.send(
        "modify", "/attributes", {"a": 1, "b": 2}, put_metadata=[metadata_entry("a", 5), metadata_entry("b", {"k": 1})]
    )
    assert metadata(harness) == {"attributes": {"b": {"k": 1}}}


def test_delete_metadata_removes_the_named_metadata() -> None:
    harness = twin_harness()
    harness.send(
        "modify",
        "/attributes",
        {"a": 1, "b": 2},
        put_metadata=[metadata_entry("*/k", 1), metadata_entry("*/l", {"m": 2})],
    )
    harness.send("modify", "/attributes/a", 1, delete_metadata="l,none")
    assert metadata(harness) == {"attributes": {"a": {"k": 1}, "b": {"k": 1, "l": {"m": 2}}}}
    harness.send("merge", "/", {"attributes": {"b": 3}}, delete_metadata="attributes/*/k")
    assert metadata(harness) == {"attributes": {"a": {}, "b": {"l": {"m": 2}}}}
    harness.send("merge", "/", {"attributes": {"b": 3}}, delete_metadata="*/l")
    assert metadata(harness) == {"attributes": {"a": {}, "b": {}}}
    harness.send("modify", "/attributes/a", 1, put_metadata=[metadata_entry("k", 1), metadata_entry("l", 2)])
    harness.send("modify", "/attributes/a", 1, delete_metadata="*")
    assert metadata(harness) == {"attributes": {"a": {}, "b": {}}}
    harness.send("merge", "/", {"attributes": {"b": 3}}, delete_metadata="*")
    assert metadata(harness) == {}


def test_get_metadata_answers_in_a_header_relative_to_the_path() -> None:
    harness = twin_harness(features={"f": {"properties": {"p": 1, "q": 2}}})
    harness.send(
        "modify",
        "/features/f/properties",
        {"p": 1, "q": 2},
        put_metadata=[metadata_entry("*/k", 1), metadata_entry("p/l", 2)],
    )

    def metadata_at(path: str, text: str) -> Any:
        response = harness.send("retrieve", path, get_metadata=text).response
        assert response.status == 200
        return response.headers["ditto-metadata"]

    assert metadata_at("/features/f/properties/p", "l") == {"l": 2}
    assert metadata_at("/features/f", "properties/*/l") == {"properties": {"p": {"l": 2}}}
    assert metadata_at("/", "features/*/properties/*/k") == {
        "features": {"f": {"properties": {"p": {"k": 1}, "q": {"k": 1}}}}
    }
    assert metadata_at("/features/f/properties", "p(k,l)") == {"p": {"k": 1, "l": 2}}
    assert metadata_at("/", "*/l") == {"features": {"f": {"properties": {"p": {"l": 2}}}}}
    assert metadata_at("/", "nothing,attributes/*/k") == {}
    assert metadata_at("/features/f/properties", "*") == {"p": {"k": 1, "l": 2}, "q": {"k": 1}}
    assert metadata_at("/policyId", "*") == {}


def test_many_names_below_a_path_are_searched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of them fit into a header; one after the other they would block all requests for seconds."""
    harness = twin_harness()
    leaves = {f"k{number}": 1 for number in range(100)}
    harness.send(
        "modify", "/attributes", leaves, put_metadata=[metadata_entry("*/a", {"b": {"a": 1}}), metadata_entry("*/c", 3)]
    )
    looked: list[Segments] = []
    named = module._find_named

    def noted(keys: Any, names: Any, path: Segments = ()) -> Any:
        looked.append(path)
        return named(keys, names, path)

    monkeypatch.setattr(module, "_find_named", noted)
    text = ",".join(f"*/{name}" for name in ("a", "b", "c", *(f"x{number}" for number in range(500))))
    found = harness.send("retrieve", get_metadata=text).response.headers["ditto-metadata"]
    assert found["attributes"]["k7"] == {"a": {"b": {"a": 1}}, "c": 3}
    assert len(looked) < 1_000
    harness.send("merge", "/attributes", {"k0": 2}, delete_metadata=text)
    assert metadata(harness) == {"attributes": {name: {} for name in leaves}}


def test_many_names_below_a_wildcard_are_searched_at_once() -> None:
    harness = twin_harness()
    features: dict[str, Any] = {f"f{number}": {} for number in range(2_500)}
    put = [metadata_entry("features/*/k7", "K"), metadata_entry("features/f1/x", 1)]
    harness.send("modify", "/", {"features": features}, put_metadata=put)
    text = ",".join(["features/f1/x", *(f"features/*/k{number}" for number in range(300))])
    with at_most(0.3):
        found = harness.send("retrieve", get_metadata=text).response.headers["ditto-metadata"]
        harness.send("merge", "/", {"definition": "a:b:1"}, delete_metadata=text)
    assert found["features"] == {name: {"k7": "K"} for name in features} | {"f1": {"k7": "K", "x": 1}}
    assert metadata(harness) == {"features": {name: {} for name in features}}


def test_fields_select_parts_of_the_metadata_of_one_thing_and_of_several() -> None:
    harness = twin_harness(attributes={"a": 1}, features={"f": {"properties": {"p": 1}}})
    harness.send(
        "merge",
        "/",
        {"attributes": {"a": 1}, "features": {"f": {"properties": {"p": 1}}}},
        put_metadata=[metadata_entry("*/k", 1)],
    )
    assert metadata(harness, "_metadata/attributes") == {"attributes": {"a": {"k": 1}}}
    assert metadata(harness, "_metadata/features/*/properties/p/k") == {
        "features": {"f": {"properties": {"p": {"k": 1}}}}
    }
    several = EntityId(EntityType.THING, "acme.plant", "_")
    metadata_at = {"thingIds": ["acme.plant:boiler-07"]}
    (found,) = msgspec.json.decode(
        harness.send("retrieve", "/", metadata_at, to=several, fields="thingId,_metadata/attributes").response.value
        or b""
    )
    assert found == {"thingId": "acme.plant:boiler-07", "_metadata": {"attributes": {"a": {"k": 1}}}}
    (found,) = msgspec.json.decode(harness.send("retrieve", "/", metadata_at, to=several).response.value or b"")
    assert "_metadata" not in found


def test_places_whose_metadata_is_unreadable_are_left_out_of_it() -> None:
    harness = twin_harness(attributes={"open": 1, "shut": {"in": 2}})
    harness.send("modify", "/attributes/shut/in", 3, put_metadata=[{"key": "k", "value": 1}])
    assert metadata(harness) == {"attributes": {"shut": {"in": {"k": 1}}}}
    harness.write_policy(
        {"VIEW": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/shut/in": revoking("READ")})}
    )
    assert harness.get("/", fields="_metadata", by=[VIEWER]) == {}


@pytest.mark.parametrize(
    ("entry_value", "place"), [("K", "unit"), ({"of": "K"}, "unit/of"), ({"a": {"b": "K"}}, "unit/a/b")]
)
def test_a_reader_of_a_part_of_an_object_does_not_learn_by_its_metadata_whether_the_rest_is_empty(
    entry_value: Any, place: str
) -> None:
    seen = []
    for value in ({"in": 1}, {}):
        harness = twin_harness()
        harness.send("modify", "/attributes/shut", value, put_metadata=[metadata_entry("unit", entry_value)])
        harness.write_policy(
            {"VIEW": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/shut/in": revoking("READ")})}
        )
        condition = f"eq(_metadata/attributes/shut/{place},'K')"
        status = harness.refused("retrieve", "/", by=[VIEWER], condition=condition)[0]
        seen.append((metadata(harness, by=[VIEWER]), status))
    assert seen == [(None, 412), (None, 412)]


def test_metadata_is_readable_only_with_read_permission_on_its_field() -> None:
    harness = twin_harness(attributes={"open": 1, "shut": {"in": 2}})
    harness.send("merge", "/", {"attributes": {"open": 1, "shut": {"in": 2}}}, put_metadata=[metadata_entry("*/k", 1)])
    harness.write_policy(
        {"VIEW": entry([VIEWER], {"thing:/": granting("READ"), "thing:/attributes/shut": revoking("READ")})}
    )
    assert metadata(harness, by=[VIEWER]) == {"attributes": {"open": {"k": 1}}}
    answer = harness.send("retrieve", "/", by=[VIEWER], get_metadata="*/k,attributes/shut/in/k").response
    assert answer.headers["ditto-metadata"] == {"attributes": {"open": {"k": 1}}}
    for field, status in (("open", 200), ("shut/in", 412)):
        condition = f"eq(_metadata/attributes/{field}/k,1)"
        if status == 200:
            assert harness.get("/attributes/open", by=[VIEWER], condition=condition) == 1
        else:
            assert harness.refused("retrieve", "/attributes/open", by=[VIEWER], condition=condition)[0] == 412


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("put_metadata", [metadata_entry("a/unit", "K")], 204),
        ("put_metadata", [metadata_entry("*/unit", "K")], 204),
        ("put_metadata", [metadata_entry("b/unit", "K")], 403),
        ("put_metadata", [metadata_entry("unit", "K")], 403),
        ("delete_metadata", "a/unit", 204),
        ("delete_metadata", "b/unit", 403),
        ("delete_metadata", "*/unit", 403),
    ],
)
def test_a_merge_changes_metadata_only_of_fields_that_its_sender_can_write(
    header: str, value: Any, expected: int
) -> None:
    """Metadata of parts that the sender cannot write is treated like a write to them."""
    harness = twin_harness(attributes={"a": 1, "b": 2})
    harness.send("modify", "/attributes", {"a": 1, "b": 2}, put_metadata=[metadata_entry("*/unit", "m")])
    harness.write_policy({"SOME": entry([VIEWER], {"thing:/attributes/a": granting("WRITE")})})
    patch: dict[str, Any] = {"by": [VIEWER], header: value}
    if expected == 204:
        assert harness.status("merge", "/attributes", {"a": 3}, **patch) == 204
    else:
        assert harness.refused("merge", "/attributes", {"a": 3}, **patch) == (403, "things:thing.notmodifiable")


def test_a_thing_may_be_created_with_metadata() -> None:
    harness = TwinHarness()
    harness.write_policy({})
    value = {"policyId": POLICY, "attributes": {"a": 1}, "_metadata": {"attributes": {"a": {"k": 1.5}}}}
    decision = harness.send("create", "/", value)
    assert decision.response.value is not None
    assert b"_metadata" not in decision.response.value
    assert harness.events[-1].value is not None
    assert b"_metadata" not in harness.events[-1].value
    assert metadata(harness) == {"attributes": {"a": {"k": 1.5}}}
    other = {"to": "acme.plant:other", "put_metadata": [metadata_entry("*/k", 1)]}
    assert harness.refused("create", "/", value, **other) == (400, "things:metadata.notmodifiable")
    assert harness.refused("modify", "/", value, put_metadata=[]) == (400, "things:metadata.notmodifiable")
    for bad, code in (([], "json.invalid"), ({"a/b": 1}, "json.key.invalid")):
        assert harness.refused("create", "/", {"_metadata": bad}, to="acme.plant:other") == (400, code)


@each_row(
    "value",
    ["x", [5], [{"key": "a"}], [{"value": 1}], [{"key": 5, "value": 1}]]
    + [[metadata_entry(key, 1)] for key in ("", "/", "*", "a/*", "*/*", "x/*/k", "a//b", "ä", "a/" + "k" * 257)],
)
def test_keys_that_cannot_be_meant_are_refused(value: Any) -> None:
    assert twin_harness().refused("modify", "/attributes", {"a": 1}, put_metadata=value) == (400, "header.invalid")


def test_headers_about_metadata_that_do_not_fit_the_command_are_refused() -> None:
    harness = twin_harness(attributes={"a": 1})
    for action, header, value in (
        ("retrieve", "put_metadata", [metadata_entry("k", 1)]),
        ("retrieve", "delete_metadata", "k"),
        ("modify", "get_metadata", "k"),
        ("delete", "put_metadata", [metadata_entry("k", 1)]),
    ):
        body = 1 if action == "modify" else ...
        assert harness.refused(action, "/attributes/a", body, **{header: value}) == (400, "header.notsupported")
    assert harness.refused("retrieve", get_metadata="a(") == (400, "json.fieldselector.invalid")
    assert harness.refused("retrieve", get_metadata="*/attributes/k") == (400, "header.invalid")
    assert harness.refused("retrieve", get_metadata="attributes/*") == (400, "header.invalid")
    assert harness.refused("retrieve", get_metadata=5) == (400, "header.invalid")


def test_metadata_applies_to_the_size_of_a_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = twin_harness()
    leaves = {f"k{number}": number for number in range(2_000)}
    large = [metadata_entry("*/k", "x" * 1_000)]
    assert harness.refused("modify", "/attributes", leaves, put_metadata=large) == (413, "things:thing.toolarge")
    # Nothing is gathered beyond the limit: a few wildcards over a large value would make millions.
    pointers: list[str] = []

    def noted(path: Segments) -> str:
        pointers.append(format_pointer(path))
        return pointers[-1]

    monkeypatch.setattr(module, "format_pointer", noted)
    many = [metadata_entry(f"*/k{number}", 1) for number in range(100)]
    assert harness.refused("modify", "/attributes", leaves, put_metadata=many) == (413, "things:thing.toolarge")
    assert len(pointers) < 10_000
    harness = TwinHarness(TwinLimits(thing=200, headers=10_000))
    tree = {"_metadata": {"k": "x" * 200}}
    assert harness.refused("create", "/", tree) == (413, "things:thing.toolarge")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("/".join(["k"] * 198), [[]]),
        ("/".join(["k"] * 900), 1),
        ("*/k", msgspec.json.decode(b"[" * 190 + b"]" * 190)),
    ],
)
def test_metadata_nested_deeper_than_a_thing_may_be_is_refused(key: str, value: Any) -> None:
    """Once accepted, it would be too deep for every later command."""
    leaf: dict[str, Any] = {"n": 1}
    for _ in range(20):
        leaf = {"n": leaf}
    harness = twin_harness()
    assert harness.refused("modify", "/attributes", leaf, put_metadata=[metadata_entry(key, value)]) == (
        400,
        "header.invalid",
    )
    deep = [metadata_entry("/".join(["k"] * 150), 1)]
    assert harness.status("modify", "/attributes", leaf, put_metadata=deep) == 201
    assert harness.status("modify", "/attributes/n", 1) == 204


def test_the_state_is_made_again_from_the_events_with_their_metadata() -> None:
    """From the first event, or from one that replaces the thing; historical headers have no metadata."""
    harness = twin_harness(attributes={"a": 1})
    harness.limits = TwinLimits(historical_headers=("correlation-id", "_metadata"))
    harness.send("modify", "/attributes/a", 1, put_metadata=[metadata_entry("unit", "K")], _metadata="forged")
    harness.send("modify", "/", {"attributes": {"a": 2}})
    harness.send("modify", "/attributes/b", 3, put_metadata=[metadata_entry("unit", "m")])
    entity = thing("acme.plant:boiler-07")
    assert [without_changes(event.headers) for event in harness.events] == [b'{"correlation-id":"c-1"}'] * 3
    folding = StateFold()
    folding.known(
        harness.snapshots[entity].__class__(entity, 1, "", "", {"thingId": "x", "attributes": {"a": 1}}, POLICY)
    )
    for event in harness.events:
        folding.event(event)
    assert folding.snapshot is not None
    assert folding.snapshot.state == harness.snapshots[entity].state


def test_metadata_survives_a_restart_and_a_replay_from_the_journal(tmp_path: Path) -> None:
    harness = twin_harness(attributes={"a": 1})
    entity = thing("acme.plant:boiler-07")
    before = harness.snapshots[entity]
    harness.send(
        "modify", "/attributes/a", 1, put_metadata=[metadata_entry("unit", "K"), metadata_entry("x/y", [1.50])]
    )
    harness.send("modify", "/", {"attributes": {"a": 2}})
    created = Event(entity, 1, before.created, "created", "/", msgspec.json.encode(before.state), b"{}")
    events = (created, *harness.events)
    journal = Journal.open(tmp_path / "journal.db")
    journal.append([Change(events, (harness.snapshots[entity],))])
    journal.close()
    again = Journal.open(tmp_path / "journal.db")
    try:
        found = again.snapshot(entity)
        assert found == harness.snapshots[entity]
        assert found is not None
        assert (found.state or {})["_metadata"] == {"attributes": {"a": {"unit": "K", "x": {"y": [1.5]}}}}
        assert fold(again.events(entity, 1, 10, 10, 1 << 20)) == found
    finally:
        again.close()


@pytest.mark.parametrize("entries", [[], [{"key": "b/k", "value": 1}]])
def test_deleting_existing_or_missing_metadata_needs_write_on_its_part(entries: list[dict[str, Any]]) -> None:
    """Otherwise a writer of one part would learn which others have metadata."""
    harness = twin_harness(attributes={"a": 1, "b": 2})
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/attributes/a": granting("WRITE")})})
    harness.send("merge", "/attributes", {"b": 3}, put_metadata=entries)
    for keys in ("*/k", "b/k", "a/k,b/k"):
        refused = harness.refused("merge", "/attributes", {"a": 2}, by=[VIEWER], delete_metadata=keys)
        assert refused == (403, "things:thing.notmodifiable")
    assert harness.status("merge", "/attributes", {"a": 2}, by=[VIEWER], delete_metadata="a/k") == 204
