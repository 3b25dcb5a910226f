"""Random commands are decided or refused, and a decision equals the replay of its events."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from connectivity.errors import TwinError
from connectivity.twins.context import TwinLimits
from connectivity.twins.decider import decide
from connectivity.twins.policy_values import is_administered
from mappings.ids import EntityType
from mappings.model.signals import Command
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.replayed import fold
from tests.support.twin_harness import (
    MERGE_PATCH,
    NOW,
    OWNER,
    OWNERS,
    POLICY,
    THING,
    VIEWER,
    TwinHarness,
    entry,
    granting,
    policy,
    revoking,
    thing,
    twin_harness,
)

NAMES = (
    "thingId policyId definition attributes features _policy _copyPolicyFrom entries subjects resources grant revoke "
    "properties imports a b a/b é"
)
KEYS = st.sampled_from([*NAMES.split(), "", "\0", "{{ ~.*~ }}", "{{ ~(~ }}"])
JSON = st.recursive(
    st.sampled_from([None, True, False, 0, 1.5, 10**30, "", "a", THING, POLICY, "a:b:1", "\0", "READ"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
PLACES = (
    "/ /policyId /definition /attributes /attributes/a /attributes/a/b /features /features/f /features/f/definition "
    "/features/f/properties /features/f/properties/p/q /features/f/desiredProperties /features/f/desiredProperties/p "
    "/entries /entries/OWNERS /entries/OWNERS/subjects/x:y /entries/VIEW/subjects /entries/VIEW/resources/thing:/a "
    "/entries/VIEW/importable /entries/VIEW/namespaces /entries/VIEW/references /entries/VIEW/allowedAdditions /imports "
    "/imports/acme.plant:boilers /imports/a:b/entries /imports/a:b/transitiveImports // /x a~0b attributes/"
)
PATHS = st.sampled_from([*PLACES.split(), "", "/attributes/\0"])
SHARED = "acme.shared:roles"
ACTIONS = st.sampled_from(["create", "modify", "merge", "delete", "retrieve", "migrate"])
HEADER_NAMES = (
    "if-match if-none-match if-equal condition content-type allow-policy-lockout put-metadata delete-metadata "
    "get-metadata merge-thing-patch-conditions at-historical-revision live-channel-condition"
)
HEADERS = st.dictionaries(
    st.sampled_from(HEADER_NAMES.split()),
    st.sampled_from(
        [
            *("*", '"rev:1"', "skip", "skip-minimizing-merge", "exists(attributes/a)", "eq(", MERGE_PATCH, True, 5),
            *(
                [{"key": "*/k", "value": 1}],
                [{"key": "a/k", "value": {"x": None}}, {"key": "k", "value": 2}],
                "*/k,a/k",
            ),
            {"a": "exists(attributes/b)", "features/f": "ne(attributes/a,1)"},
        ]
    ),
    max_size=3,
)
FIELDS = st.none() | st.sampled_from(
    ["thingId", "_policy,_revision", "_metadata/attributes", "features/*/properties", "a(", "attributes(a,b)"]
)
VALUES = st.none() | JSON.map(msgspec.json.encode) | st.binary(max_size=4)
ENTITIES = st.sampled_from(
    [thing(THING), thing("acme.plant:new"), policy(POLICY), policy("acme.plant:new"), thing("a:_")]
)


def furnished_harness() -> TwinHarness:
    harness = twin_harness(attributes={"a": {"b": 1}}, features={"f": {"properties": {"p": [1]}}, "n": None})
    harness.write_policy(
        {
            "VIEW": entry(
                [VIEWER], {"thing:/": granting("READ", "WRITE"), "thing:/attributes/a/b": revoking("READ", "WRITE")}
            )
        }
    )
    return harness


HARNESS = furnished_harness()
"""Decisions change nothing, so one harness does for all."""


EXISTING = ["/attributes", "/attributes/a", "/attributes/a/b", "/features", "/features/f", "/features/f/properties"]
ASKED = st.builds(Command, ENTITIES, ACTIONS, PATHS, VALUES, HEADERS, FIELDS) | st.builds(
    Command,
    st.just(thing(THING)),
    st.sampled_from(["modify", "retrieve", "delete"]),
    st.sampled_from(EXISTING),
    st.dictionaries(KEYS, JSON, max_size=2).map(msgspec.json.encode),
    st.just({}) | HEADERS,
)
"""The second half has a chance to be carried out."""


@accepts(at_least=3)
@settings(max_examples=examples(600), deadline=None)
@given(ASKED, st.just((OWNER,)) | st.sampled_from([(VIEWER,), ()]))
def test_every_command_is_decided_or_refused(command: Command, subjects: Any) -> None:
    before = dict(HARNESS.snapshots)
    if command.action == "merge":
        command = replace(command, headers={"content-type": MERGE_PATCH, **command.headers})
    try:
        decision = decide(command, subjects, HARNESS.lookup, NOW)
    except TwinError:
        return
    accepted()
    assert before == HARNESS.snapshots
    assert decision.response.status in (200, 201, 204)
    assert (decision.response.value is None) == (decision.response.status == 204)
    for snapshot in decision.snapshots:
        assert snapshot.state is None or msgspec.json.decode(msgspec.json.encode(snapshot.state)) == snapshot.state


USUAL = st.tuples(
    st.sampled_from(["modify", "delete"]),
    st.sampled_from(["/attributes/a", "/attributes", "/features/f/properties", "/features/f", "/features"]),
    st.dictionaries(st.sampled_from("ab"), JSON, max_size=2),
    st.just({}),
)
COMMANDS = st.lists(USUAL | st.tuples(ACTIONS, PATHS, JSON, HEADERS), min_size=1, max_size=12)


@accepts(at_least=3)
@settings(max_examples=examples(60), deadline=None)
@given(COMMANDS)
def test_a_state_equals_the_replay_of_its_events(commands: list[tuple[str, str, Any, dict[str, Any]]]) -> None:
    """The state after any conversation is the fold of its events, and revisions run without gaps.

    No thing outgrows its limit.
    """
    harness = TwinHarness(TwinLimits(thing=500, headers=100_000))
    harness.send("create", "/", {"attributes": {"a": {"b": 1}}, "features": {"f": {"properties": {"p": 1}}}})
    for action, path, value, headers in commands:
        try:
            harness.send(action, path, value, **{name.replace("-", "_"): header for name, header in headers.items()})
        except TwinError:
            continue
        else:
            accepted()
        finally:
            for snapshot in harness.snapshots.values():
                assert snapshot.entity.type is EntityType.POLICY or len(msgspec.json.encode(snapshot.state)) <= 500
    for entity, snapshot in harness.snapshots.items():
        events = [event for event in harness.events if event.entity == entity]
        assert fold(events) == snapshot
        assert [event.revision for event in events] == list(range(1, len(events) + 1))


PARTS = st.sampled_from(["/attributes", "/attributes/a", "/features", "/features/f", "/features/f/properties"])
SMALL = st.recursive(
    st.sampled_from([None, True, 1, 1.5, -0.0, 2**63 - 1, "", "a"]),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "properties", "definition"]), inner, max_size=3),
    max_leaves=5,
)


@accepts(at_least=3)
@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["modify", "merge", "delete"]), PARTS, SMALL), max_size=8), PARTS)
def test_the_entity_tag_of_a_part_changes_exactly_when_the_part_does(
    commands: list[tuple[str, str, Any]], asked: str
) -> None:
    harness = twin_harness(attributes={"a": 1}, features={"f": {"properties": {"a": 1}}})

    def part() -> tuple[str | None, bytes | None]:
        try:
            response = harness.send("retrieve", asked).response
        except TwinError:
            return None, None
        return response.headers["etag"], msgspec.json.encode(msgspec.json.decode(response.value or b""), order="sorted")

    tag, value = part()
    for action, path, given_value in commands:
        revision = harness.revision()
        try:
            harness.send(action, path, ... if action == "delete" else given_value)
        except TwinError:
            assert part() == (tag, value)
            assert harness.revision() == revision
            continue
        accepted()
        assert harness.revision() == revision + 1
        new_tag, new_value = part()
        assert (new_tag == tag) == (new_value == value)
        tag, value = new_tag, new_value


POLICY_VALUES = st.sampled_from(
    [
        {},
        [],
        {"a:b": {"type": "t"}},
        {"type": "t", "expiry": "2031-01-01T00:00:00Z", "announcement": {"whenDeleted": True}},
        {"grant": ["READ"], "revoke": []},
        {"thing:/": {"grant": ["READ", "WRITE"], "revoke": ["EXECUTE"]}},
        {"subjects": {"a:b": {"type": "t"}}, "resources": {}},
        {"VIEW": {"subjects": {}, "resources": {}}},
        {"entries": {"OWNERS": OWNERS, "A": {"subjects": {}, "resources": {}, "importable": "never"}}},
        "explicit",
        "never",
        ["acme.*"],
        ["subjects"],
        [{"entry": "VIEW"}],
        {SHARED: {"entries": ["A"]}},
    ]
)
POLICY_PATHS = st.sampled_from(
    [
        "/",
        "/entries",
        *("/entries/VIEW" + rest for rest in ("", "/subjects", "/subjects/a:b", "/resources", "/resources/thing:/x")),
        *("/entries/A/" + rest for rest in ("importable", "namespaces", "allowedAdditions", "references")),
        "/entries/OWNERS/references",
        *("/imports" + rest for rest in ("", f"/{SHARED}", f"/{SHARED}/entries", f"/{SHARED}/transitiveImports")),
    ]
)
POLICY_COMMANDS = st.lists(
    st.tuples(st.sampled_from(["modify", "modify", "delete", "retrieve"]), POLICY_PATHS, POLICY_VALUES), max_size=15
)


@accepts(at_least=1)
@settings(max_examples=examples(150), deadline=None)
@given(POLICY_COMMANDS)
def test_a_policy_equals_the_replay_of_its_events_and_always_has_an_administrator(commands: Any) -> None:
    """After any change of its parts the policy is complete, and its owner can change it."""
    harness = TwinHarness()
    harness.write_policy({"A": entry([VIEWER], {})}, to=SHARED)
    harness.write_policy({"VIEW": entry([VIEWER], {"thing:/": granting("READ")})})
    pol = policy(POLICY)
    for action, path, value in commands:
        try:
            harness.send(action, path, ... if action in ("delete", "retrieve") else value, to=pol)
        except TwinError:
            continue
        accepted()
    snapshot = harness.snapshots[pol]
    assert fold([event for event in harness.events if event.entity == pol]) == snapshot
    if snapshot.state is None:
        return
    assert snapshot.state["policyId"] == POLICY
    assert isinstance(snapshot.state["imports"], dict)
    for one in snapshot.state["entries"].values():
        assert {"subjects", "resources", "importable"} <= one.keys()
    assert is_administered(snapshot.state)
    assert harness.get(to=pol, policy_view="resolved")["policyId"] == POLICY
