"""Folding events into states."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.ids import EntityId, EntityType, partition_entity
from mappings.model.signals import Event
from spark_store.history.replay import STATE_PATHS, DeletePatternRefused, MatchBudget, evolve, matching_keys, merge
from spark_store.records import Snapshot
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.replayed import fold
from tests.support.table import each_row

THING = EntityId(EntityType.THING, "acme.site", "lamp-7")
POLICY = EntityId(EntityType.POLICY, "acme.site", "lamps")


def an_event(action: str, path: str = "/", value: Any = ..., revision: int = 1, entity: EntityId = THING) -> Event:
    raw = None if value is ... else msgspec.json.encode(value)
    return Event(entity, revision, f"2030-01-15T07:30:{revision:02}.000000Z", action, path, raw, b"{}")


Step: TypeAlias = tuple[str, str] | tuple[str, str, Any]


def event_of(step: Step, revision: int, entity: EntityId = THING) -> Event:
    action, path, *value = step
    return an_event(action, path, value[0] if value else ..., revision, entity)


def replayed(*steps: Step) -> Snapshot:
    """The state after a conversation of (action, path, value)."""
    return fold(event_of(step, number) for number, step in enumerate(steps, 1))


CREATED = (
    "created",
    "/",
    {"thingId": "acme.site:lamp-7", "policyId": "acme.site:lamps", "attributes": {"a": {"b": 1}}},
)


def test_a_creation_is_the_first_state() -> None:
    assert replayed(CREATED) == Snapshot(
        THING, 1, "2030-01-15T07:30:01.000000Z", "2030-01-15T07:30:01.000000Z", CREATED[2], "acme.site:lamps"
    )


@each_row(
    ("step", "attributes"),
    [
        (("modified", "/attributes/a/b", 2), {"a": {"b": 2}}),
        (("created", "/attributes/x/y", None), {"a": {"b": 1}, "x": {"y": None}}),
        (("created", "/attributes/a/b/c", 1), {"a": {"b": {"c": 1}}}),
        (("modified", "/attributes", {}), {}),
        (("deleted", "/attributes/a/b"), {"a": {}}),
        (("deleted", "/attributes/none/b"), {"a": {"b": 1}}),
        (("merged", "/attributes", {"a": None, "c": 1}), {"c": 1}),
        (("merged", "/attributes/a/b", None), {"a": {}}),
        (("merged", "/attributes/none/x", None), {"a": {"b": 1}}),
        (("merged", "/attributes/a/b", {"c": None, "d": {"e": None}}), {"a": {"b": {"d": {}}}}),
        (("merged", "/attributes", {"{{ ~[ab]~ }}": None, "b": 2}), {"b": 2}),
    ],
)
def test_an_event_changes_its_place(step: tuple[Any, ...], attributes: Any) -> None:
    after = replayed(CREATED, step)
    assert after.state is not None
    assert after.state["attributes"] == attributes
    assert (after.revision, after.created, after.modified) == (
        2,
        "2030-01-15T07:30:01.000000Z",
        "2030-01-15T07:30:02.000000Z",
    )


def test_the_policy_of_a_thing_follows_its_state() -> None:
    assert replayed(CREATED, ("modified", "/policyId", "a:other")).policy == "a:other"


def test_a_tombstone_keeps_revision_and_policy_and_a_creation_starts_again() -> None:
    deleted = replayed(CREATED, ("deleted", "/"))
    assert (deleted.is_deleted, deleted.revision, deleted.policy) == (True, 2, "acme.site:lamps")
    again = replayed(CREATED, ("deleted", "/"), ("created", "/", {"policyId": "a:new"}))
    assert (again.revision, again.created, again.policy) == (3, "2030-01-15T07:30:03.000000Z", "a:new")


def test_a_policy_replays_in_parts_and_always_has_imports() -> None:
    """The keys of subjects and resources are the rest of the path.

    Deleting the imports leaves an empty object.
    """
    steps: tuple[Step, ...] = (
        ("created", "/", {"policyId": "acme.site:lamps", "imports": {"a:b": {"entries": []}}, "entries": {}}),
        ("created", "/entries/a~0b", {"subjects": {}, "resources": {}}),
        ("created", "/entries/a~0b/subjects/https://id:x/y", {"type": "t"}),
        ("created", "/entries/a~0b/resources/thing:/a~0b/c", {"grant": [], "revoke": []}),
        ("created", "/entries/a~0b/subjects/a:b", {"type": "t"}),
        ("deleted", "/entries/a~0b/subjects/a:b"),
        ("deleted", "/imports"),
    )
    state = fold([event_of(step, n, POLICY) for n, step in enumerate(steps, 1)]).state
    assert state == {
        "policyId": "acme.site:lamps",
        "imports": {},
        "entries": {
            "a~b": {
                "subjects": {"https://id:x/y": {"type": "t"}},
                "resources": {"thing:/a~0b/c": {"grant": [], "revoke": []}},
            }
        },
    }


def test_a_message_of_a_stream_changes_nothing_but_the_revision() -> None:
    streamr_harness = partition_entity("tank/0")
    states = [evolve(None, an_event("published", "/", "1", entity=streamr_harness))]
    states.append(evolve(states[0], an_event("published", "/", "no JSON {", revision=2, entity=streamr_harness)))
    assert states[1] == Snapshot(streamr_harness, 2, states[0].created, "2030-01-15T07:30:02.000000Z", {}, None)
    assert not states[1].is_deleted
    # The state after an erasure: revisions continue, and the entity starts again.
    gone = Snapshot(streamr_harness, 2, states[0].created, states[0].modified, None, None)
    again = evolve(gone, an_event("published", "/", "1", revision=3, entity=streamr_harness))
    assert again == Snapshot(streamr_harness, 3, "2030-01-15T07:30:03.000000Z", "2030-01-15T07:30:03.000000Z", {}, None)


def test_a_policy_guards_itself() -> None:
    created = evolve(None, an_event("created", "/", {"policyId": "x", "entries": {}}, entity=POLICY))
    assert created.policy == "acme.site:lamps"
    assert evolve(created, an_event("deleted", revision=2, entity=POLICY)).policy == "acme.site:lamps"


@pytest.mark.parametrize(
    ("type", "path", "keys"),
    [
        (EntityType.THING, "/", ()),
        (EntityType.THING, "/attributes/a~0b/", ("attributes", "a~b")),
        (EntityType.POLICY, "/entries/A/subjects/http://a:b", ("entries", "A", "subjects", "http://a:b")),
        (EntityType.POLICY, "/entries/A/resources/thing:/", ("entries", "A", "resources", "thing:/")),
        (EntityType.POLICY, "/entries/A/subjects", ("entries", "A", "subjects")),
        (EntityType.POLICY, "/imports/a:b/entries", ("imports", "a:b", "entries")),
    ],
)
def test_a_path_names_keys(type: EntityType, path: str, keys: tuple[str, ...]) -> None:
    assert STATE_PATHS[type](path) == keys


@each_row(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7396(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


STATES = st.recursive(
    st.none() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
PLACES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda keys: "/" + "/".join(keys))


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), STATES, max_size=3), st.sampled_from(["modified", "merged", "deleted"]))
def test_no_event_changes_the_state_before_it(state: dict[str, Any], action: str) -> None:
    """Neither its members nor anything they share with the state after it."""
    before = Snapshot(THING, 1, "t", "t", state, None)
    kept = copy.deepcopy(before)
    for path in ("/a", "/a/b", "/b/c/a"):
        evolve(before, an_event(action, path, {"a": {"b": None, "c": 1}}, revision=2))
        assert before == kept


@settings(max_examples=examples(150), deadline=None)
@given(STATES, STATES)
def test_merging_twice_is_merging_once(target: Any, patch: Any) -> None:
    once = merge(target, patch)
    assert merge(once, patch) == once


@settings(max_examples=examples(100), deadline=None)
@given(PLACES, STATES)
def test_a_replayed_state_has_the_modified_value(path: str, value: Any) -> None:
    after: Any = replayed(CREATED, ("modified", path, value)).state
    for key in STATE_PATHS[EntityType.THING](path):
        after = after[key]
    assert after == value


def test_untouched_members_are_shared() -> None:
    before = replayed(CREATED)
    after = evolve(before, an_event("created", "/features/f", {}, revision=2))
    assert before.state is not None
    assert after.state is not None
    assert after.state["attributes"] is before.state["attributes"]


@each_row(
    ("pattern", "found"),
    [
        ("{{ ~a.*~ }}", ["a", "ab", "a-b"]),
        ("{{~ab?~}}", ["a", "ab"]),
        ("{{ ~a~ }}", ["a"]),
        ("{{ ~(?:a|b)~ }}", ["a", "b"]),
        ("{{ ~[a-c]{2}~ }}", ["ab"]),
        (r"{{ ~\w-\w~ }}", ["a-b"]),
        ("{{ /b/ }}", ["b"]),
        ("{{ ~.*-.*~ }}", ["a-b"]),
    ],
)
def test_a_delete_pattern_matches_whole_keys(pattern: str, found: list[str]) -> None:
    assert matching_keys(pattern, ["a", "ab", "a-b", "b"], MatchBudget()) == found


@each_row(
    "expression",
    ["(", "(a+)+", "(a|a)*", "(a|aa)+$", "(a?){20}a{20}", "a?" * 30 + "a" * 30, ".*.*.*.*.*x", r"(a)\1", "(?=a)", "[["],
)
def test_a_delete_pattern_that_could_take_long_is_refused(expression: str) -> None:
    with at_most(0.1), pytest.raises(DeletePatternRefused):
        matching_keys(f"{{{{ ~{expression}~ }}}}", ["a" * 256], MatchBudget())


@each_row(
    "expression", ["(){200}x", "(?:){200}x", "(^){5000000}x", "a{257}", "a{1,257}", "a{257,}", "a{,257}", "((b)()){2}"]
)
def test_a_delete_pattern_that_takes_memory_for_every_round_is_refused(expression: str) -> None:
    """No key is that long, and rounds over nothing are remembered one by one."""
    with pytest.raises(DeletePatternRefused, match=r"at most 256 repetitions|no empty group"):
        matching_keys(f"{{{{ ~{expression}~ }}}}", ["a"], MatchBudget())


def test_as_many_repetitions_as_a_key_is_long_are_accepted() -> None:
    assert matching_keys("{{ ~a{256}~ }}", ["a" * 256, "a"], MatchBudget()) == ["a" * 256]


def test_the_patterns_of_one_merge_have_one_budget() -> None:
    """For any number of patterns, at any depth."""
    keys = {"a" * 100: 1, **{str(number): number for number in range(10)}}
    pattern = "{{{{ ~.*{}.*x~ }}}}"
    assert merge({"in": keys}, {"in": {pattern.format(number): None for number in range(3)}}) == {"in": keys}
    with at_most(0.3):
        with pytest.raises(DeletePatternRefused, match="expected fewer patterns"):
            merge({"in": keys}, {"in": {pattern.format(number): None for number in range(1000)}})
        with pytest.raises(DeletePatternRefused, match="expected fewer patterns"):
            merge({}, {str(number): {f"{{{{ ~{number}~ }}}}": None} for number in range(1000)})


def test_a_long_path_is_not_kept() -> None:
    path = "/attributes/" + "a" * 501
    assert STATE_PATHS[EntityType.THING](path) == ("attributes", "a" * 501)
    assert STATE_PATHS[EntityType.THING](path) is not STATE_PATHS[EntityType.THING](path)


def test_a_delete_pattern_that_is_accepted_is_fast_at_its_worst() -> None:
    with at_most(0.5):
        assert matching_keys("{{ ~.*a.*x~ }}", ["a" * 256] * 10, MatchBudget()) == []


@accepts(at_least=1)
@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet="ab(|)*+?{2,}[]^-\\.$:", max_size=12))
def test_any_delete_pattern_matches_or_is_refused(expression: str) -> None:
    try:
        found = matching_keys(f"{{{{ ~{expression}~ }}}}", ["a", "ab", "b" * 100], MatchBudget())
    except DeletePatternRefused:
        return
    accepted()
    assert set(found) <= {"a", "ab", "b" * 100}
