"""The events that a target receives, and their form: cases of the specification and single checks."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from connectivity.authorization.enforcer import Enforcer
from connectivity.targets.signal_context import TWIN_EVENTS, SignalContext, SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from connectivity.twins.incarnations import WithoutPast
from mappings.ids import EntityId, EntityType
from mappings.mappers import load_codec
from mappings.model.signals import Live, LiveCommand, LiveEvent, Message, TwinEvent
from spark_store.errors import UnknownProperty
from spark_store.records import Snapshot
from tests.support.in_process.topic_filter_harness import (
    TopicFilterHarness,
    extra_of,
    interest,
    on_its_way,
    topic,
    value_of,
)
from tests.support.paths import ROOT
from tests.support.table import each_row
from tests.support.twin_harness import (
    ALL,
    OWNER,
    POLICY,
    THING,
    VIEWER,
    entry,
    granting,
    policy,
    revoking,
    thing,
    twin_harness,
)

ALL_EVENTS = interest()


def a_plant(viewer: dict[str, object] | None = None, **members: object) -> TopicFilterHarness:
    """The thing of the examples; VIEWER has these resources of it."""
    plant = TopicFilterHarness(twin_harness(**members))
    if viewer is not None:
        plant.harness.write_policy({"VIEW": entry([VIEWER], viewer)})
    return plant


# --- cases of the specification -----------------------------------------------------------------------------------------


def test_case_106_only_events_of_the_wanted_namespaces_pass() -> None:
    plant = TopicFilterHarness()
    plant.harness.send("create", "/", {"policyId": POLICY}, to="acme:u")
    wanted = interest(namespaces="acme.plant")
    events = [plant.apply("modify", "/attributes/a", 1), plant.apply("modify", "/attributes/a", 1, to="acme:u")]
    assert [event.entity.id for event in plant.received(wanted, events)] == ["acme.plant:boiler-07"]
    assert plant.judge(wanted, events[1]) is SuppressionReason.NAMESPACE
    assert len(plant.received(interest(namespaces="acme.plant,acme"), events)) == 2
    assert plant.received(interest(namespaces="acme.pl,acme.plant.x,*"), events) == []


def test_case_107_a_filter_passes_matching_events_and_refuses_events_of_other_fields() -> None:
    plant = TopicFilterHarness()
    events = [plant.apply("modify", "/attributes/c", number) for number in range(1, 21)]
    assert [value_of(event) for event in plant.received(interest("le(attributes/c,10)"), events)] == list(range(1, 11))
    others = [plant.apply("modify", "/attributes/d", number) for number in range(3)]
    assert plant.received(interest("le(attributes/c,10)"), others) == []
    assert plant.judge(interest("le(attributes/c,10)"), others[0]) is SuppressionReason.FILTER


def test_case_108_a_filter_reads_the_value_of_the_event() -> None:
    plant = TopicFilterHarness()
    events = [
        plant.apply("modify", "/features", {"feature1": {}, "feature2": {}}),
        plant.apply("modify", "/features", {"feature2": {}}),
    ]
    assert plant.received(interest("exists(features/feature1)"), events) == events[:1]


def test_case_109_extra_fields_are_delivered_and_their_filter_sees_them() -> None:
    plant = a_plant(attributes={"location": {"hall": "N"}, "counter": 0})
    wanted = interest('and(eq(attributes/location/hall,"N"),eq(attributes/counter,42))', "attributes/location")
    events = [plant.apply("modify", "/attributes/counter", number) for number in (41, 42)]
    (delivered,) = plant.received(wanted, events)
    assert (value_of(delivered), extra_of(delivered)) == (42, {"attributes": {"location": {"hall": "N"}}})
    plant.apply("modify", "/attributes/location/hall", "S")
    assert plant.received(wanted, [plant.apply("modify", "/attributes/counter", 42)]) == []


def test_case_110_the_life_of_a_thing_is_two_events() -> None:
    """Case 60 of connections, too."""
    plant = TopicFilterHarness()
    other = "acme.plant:boiler-08"
    events = [
        plant.apply("create", "/", {"policyId": POLICY, "attributes": {"a": 0}}, to=other),
        plant.apply("modify", "/attributes/a", 1, to=other),
        plant.apply("merge", "/", {"attributes": {"a": 2}}, to=other),
        plant.apply("modify", "/features", {"f": {}}, to=other),
        plant.apply("delete", "/", to=other),
    ]
    wanted = interest("and(in(topic:action,'created','deleted'),eq(resource:path,'/'))")
    assert [event.revision for event in plant.received(wanted, events)] == [1, 5]


def test_case_111_two_topics_that_match_make_one_event_with_the_extra_fields_of_one() -> None:
    """Case 61 of connections, too."""
    plant = a_plant(attributes={"a": 1, "b": 2, "c": 3})
    event = plant.apply("modify", "/attributes/c", 4)
    for topics in (
        [topic(extra="attributes/b"), topic(extra="attributes/a"), topic()],
        [topic(), topic(extra="attributes/a"), topic(extra="attributes/b")],
    ):
        assert extra_of(plant.judge(TopicFilter(topics, [OWNER]), event)) == {"attributes": {"a": 1}}


def test_rule_10_3_a_filter_sees_the_extra_fields_of_a_feature_that_is_selected_by_its_id_and_by_a_wildcard() -> None:
    plant = a_plant(
        features={"burner": {"properties": {"on": True, "power": 4}}, "tank": {"properties": {"on": False}}}
    )
    wanted = interest(
        "eq(features/burner/properties/on,true)", "features/*/properties/on,features/burner/properties/power"
    )
    (delivered,) = plant.received(wanted, [plant.apply("modify", "/attributes/a", 1)])
    assert extra_of(delivered) == {
        "features": {"burner": {"properties": {"on": True, "power": 4}}, "tank": {"properties": {"on": False}}}
    }


def test_rule_10_3_a_filter_sees_the_metadata_that_a_wildcard_in_the_extra_fields_selects() -> None:
    plant = a_plant(features={"burner": {"properties": {"on": True}}})
    plant.apply("modify", "/features/burner/properties/on", True, put_metadata=[{"key": "source", "value": "relay"}])
    wanted = interest(
        "eq(_metadata/features/burner/properties/on/source,'relay')", "_metadata/features/*/properties/on"
    )
    (delivered,) = plant.received(wanted, [plant.apply("modify", "/attributes/a", 1)])
    assert extra_of(delivered) == {"_metadata": {"features": {"burner": {"properties": {"on": {"source": "relay"}}}}}}


def test_topics_with_different_filters_attach_only_their_own_fields() -> None:
    """Case 61 of connections: siblings that another topic selects are not included."""
    plant = a_plant(attributes={"site": {"a": 1, "b": 2}, "n": 0})
    both = TopicFilter(
        [topic("gt(attributes/n,5)", "attributes/site/a"), topic("lt(attributes/n,5)", "attributes/site/b")], [OWNER]
    )
    low, high = (plant.apply("modify", "/attributes/n", number) for number in (1, 9))
    assert extra_of(plant.judge(both, low)) == {"attributes": {"site": {"b": 2}}}
    assert extra_of(plant.judge(both, high)) == {"attributes": {"site": {"a": 1}}}
    assert plant.judge(both, plant.apply("modify", "/attributes/n", 5)) is SuppressionReason.FILTER


def test_case_112_a_reader_of_a_part_gets_that_part_and_receives_of_nothing_else() -> None:
    plant = a_plant({"thing:/attributes/something/special": granting("READ")})
    partial = interest(subjects=[VIEWER])
    whole = plant.apply("modify", "/attributes", {"something": {"special": 1, "secret": 2}, "other": 3})
    assert value_of(plant.judge(partial, whole)) == {"something": {"special": 1}}
    assert plant.judge(partial, plant.apply("modify", "/attributes/other", 4)) is SuppressionReason.FORBIDDEN
    assert plant.judge(partial, plant.apply("modify", "/attributes", {"other": 5})) is SuppressionReason.EMPTY
    assert value_of(plant.judge(ALL_EVENTS, whole)) == {
        "something": {"special": 1, "secret": 2},
        "other": 3,
    }


def test_case_113_the_event_of_a_new_thing_omits_the_revoked_fields() -> None:
    """Case 59 of connections, too."""
    plant = a_plant({"thing:/": granting("READ"), "thing:/features/Lamp": revoking("READ")})
    created = {"policyId": POLICY, "features": {"Lamp": {"properties": {"on": True}}, "Door": {}}}
    event = plant.apply("create", "/", created, to="acme.plant:hall-1")
    value = value_of(plant.judge(interest(subjects=[VIEWER]), event))
    assert (value["policyId"], value["features"]) == (POLICY, {"Door": {}})


def test_case_116_headers_of_the_command_travel_with_the_event() -> None:
    plant = TopicFilterHarness()
    event = plant.apply("modify", "/attributes/a", 1, correlation_id="c-7", x_shift="night")
    answer = plant.judge(ALL_EVENTS, event)
    assert isinstance(answer, TwinEvent)
    assert (answer.headers["correlation-id"], answer.headers["x-shift"]) == ("c-7", "night")


def test_connections_case_06_namespace_and_filter_both_have_to_let_an_event_pass() -> None:
    plant = TopicFilterHarness()
    plant.harness.send("create", "/", {"policyId": POLICY}, to="acme:u")
    wanted = interest("gt(attributes/a,5)", namespaces="acme.plant")
    events = [plant.apply("modify", "/attributes/a", number, to=to) for to in (THING, "acme:u") for number in (4, 6)]
    assert [(event.entity.id, value_of(event)) for event in plant.received(wanted, events)] == [(THING, 6)]


def test_connections_case_62_extra_fields_show_the_new_value_and_every_feature_that_has_one() -> None:
    features = {"a": {"properties": {"t": 1}}, "b": {"properties": {"u": 2}}, "c": {"properties": {"t": 3, "u": 4}}}
    plant = a_plant(attributes={"n": 1}, features=features)
    event = plant.apply("modify", "/attributes/n", 2)
    assert extra_of(plant.judge(interest(extra="attributes/n"), event)) == {"attributes": {"n": 2}}
    assert extra_of(plant.judge(interest(extra="features/*/properties/t"), event)) == {
        "features": {"a": {"properties": {"t": 1}}, "c": {"properties": {"t": 3}}}
    }


# --- filters, line by line ----------------------------------------------------------------------------------------------

_THING = {"policyId": POLICY, "features": {"burner": {"properties": {"on": True}}}}


@each_row(
    ("filter", "extra", "change", "passes"),
    [
        ("gt(attributes/count,42)", None, ("modify", "/attributes/count", 50), True),
        ("gt(attributes/count,42)", None, ("modify", "/attributes/name", "x"), False),
        ('ne(attributes/name,"x")', None, ("modify", "/features/burner/properties/p", 1), True),
        ('not(eq(attributes/name,"x"))', None, ("modify", "/features/burner/properties/p", 1), True),
        ("exists(features/burner)", None, ("modify", "/features", {"burner": {}}), True),
        ("exists(features/burner)", None, ("delete", "/features/burner", ...), False),
        ('like(attributes/name,"*")', None, ("modify", "/attributes/other", "x"), False),
        ("in(topic:action,'created','deleted')", None, ("delete", "/features/burner", ...), True),
        ("and(in(topic:action,'created','deleted'),eq(resource:path,'/'))", None, ("delete", "/features", ...), False),
        ("and(in(topic:action,'created','deleted'),eq(resource:path,'/'))", None, ("delete", "/", ...), True),
        ('eq(attributes/site,"N")', "attributes/site", ("modify", "/attributes/count", 1), True),
        ('eq(attributes/site,"S")', "attributes/site", ("modify", "/attributes/count", 1), False),
        ('eq(attributes/site,"N")', None, ("modify", "/attributes/count", 1), False),
        ('ne(attributes/site,"N")', "attributes/site", ("modify", "/attributes/count", 1), False),
        ('eq(attributes/site,"S")', "attributes/site", ("modify", "/attributes/site", "S"), True),
        ('or(eq(attributes/site,"N"),gt(attributes/count,5))', "attributes/site", ("modify", "/attributes/b", 1), True),
        ("gt(_revision,1)", None, ("modify", "/attributes/count", 1), True),
        ("gt(_revision,2)", None, ("modify", "/attributes/count", 1), False),
        ("exists(attributes/a)", None, ("merge", "/", {"attributes": {"a": None, "b": 1}}), False),
        ("exists(attributes/b)", None, ("merge", "/", {"attributes": {"a": None, "b": 1}}), True),
        ("eq(attributes/site,'N')", None, ("modify", "/", {**_THING, "attributes": {"site": "N"}}), True),
        (
            "eq(topic:full,'acme.plant/boiler-07/things/twin/events/modified')",
            None,
            ("modify", "/attributes/a", 1),
            True,
        ),
        ("eq(topic:namespace,'acme.plant')", None, ("modify", "/attributes/a", 1), True),
        ("eq(topic:entityName,'boiler-07')", None, ("modify", "/attributes/a", 1), True),
        ("eq(topic:group,'things')", None, ("modify", "/attributes/a", 1), True),
        ("eq(topic:channel,'twin')", None, ("modify", "/attributes/a", 1), True),
        ("eq(topic:criterion,'events')", None, ("modify", "/attributes/a", 1), True),
        ("eq(topic:action,'merged')", None, ("merge", "/attributes", {"a": 1}), True),
        ("eq(topic:action,'merged')", None, ("modify", "/attributes/a", 1), False),
        ("eq(topic:action-subject,'modified')", None, ("modify", "/attributes/a", 1), True),
        ("exists(topic:subject)", None, ("modify", "/attributes/a", 1), False),
        ("empty(topic:subject)", None, ("modify", "/attributes/a", 1), True),
        ("ne(topic:subject,'x')", None, ("modify", "/attributes/a", 1), True),
        ("exists(topic:action)", None, ("modify", "/attributes/a", 1), True),
        ("eq(resource:type,'thing')", None, ("modify", "/attributes/a", 1), True),
        ("like(resource:path,'/attributes/*')", None, ("modify", "/attributes/a", 1), True),
        ("like(resource:path,'/features/*')", None, ("modify", "/attributes/a", 1), False),
        ("eq(thing:id,'acme.plant:boiler-07')", None, ("modify", "/attributes/a", 1), True),
        ("eq(thing:namespace,'acme.plant')", None, ("modify", "/attributes/a", 1), True),
        ("eq(thing:name,'boiler-07')", None, ("modify", "/attributes/a", 1), True),
        ("eq(entity:id,'acme.plant:boiler-07')", None, ("modify", "/attributes/a", 1), True),
        ("eq(entity:name,'boiler-08')", None, ("modify", "/attributes/a", 1), False),
        ("eq(feature:id,'burner')", None, ("modify", "/features/burner/properties/on", False), True),
        ("eq(feature:id,'burner')", None, ("modify", "/features", {"lamp": {}, "burner": {}}), True),
        ("eq(feature:id,'burner')", None, ("modify", "/attributes/a", 1), False),
        ("eq(header:x-shift,'night')", None, ("modify", "/attributes/a", 1), True),
        ("eq(header:X-Shift,'day')", None, ("modify", "/attributes/a", 1), False),
        ("exists(header:x-none)", None, ("modify", "/attributes/a", 1), False),
        ("lt(attributes/at,time:now)", None, ("modify", "/attributes/at", "2030-01-15T07:29:59Z"), True),
        ("lt(attributes/at,time:now-1h)", None, ("modify", "/attributes/at", "2030-01-15T07:29:59Z"), False),
        ("gt(time:now,'2030-01-01')", None, ("modify", "/attributes/a", 1), True),
        ("ge(_modified,time:now-1d)", None, ("modify", "/attributes/a", 1), True),
    ],
)
def test_10_3_a_filter_passes_only_matching_events(
    filter: str, extra: str | None, change: tuple[str, str, object], passes: bool
) -> None:
    plant = a_plant(attributes={"a": 0, "site": "N", "count": 0}, features={"burner": {"properties": {"on": True}}})
    event = plant.apply(*change, x_shift="night")
    answer = plant.judge(interest(filter, extra), event)
    assert (answer is not SuppressionReason.FILTER) is passes
    if passes:
        assert isinstance(answer, TwinEvent)


@pytest.mark.parametrize("filter", ["eq(topic:colour,'x')", "eq(foo:bar,1)", "eq(topic,1)", "exists(resource:)"])
def test_a_property_that_no_signal_has_is_refused_when_the_filter_is_read(filter: str) -> None:
    with pytest.raises(UnknownProperty):
        interest(filter)


# --- visible parts -------------------------------------------------------------------------------------------------------


def test_a_filter_reads_only_the_fields_that_its_target_can_read() -> None:
    plant = a_plant({"thing:/": granting("READ"), "thing:/attributes/secret": revoking("READ")})
    event = plant.apply("modify", "/attributes", {"secret": 7, "open": 1})
    hidden, seen = "eq(attributes/secret,7)", "eq(attributes/open,1)"
    assert [plant.judge(interest(filter, subjects=[VIEWER]), event) for filter in (hidden,)] == [
        SuppressionReason.FILTER
    ]
    assert value_of(plant.judge(interest(seen, subjects=[VIEWER]), event)) == {"open": 1}
    assert isinstance(plant.judge(interest(hidden), event), TwinEvent)
    assert plant.judge(interest(hidden, "attributes/secret", subjects=[VIEWER]), event) is SuppressionReason.FILTER


def test_an_operand_reveals_nothing_of_a_feature_that_its_target_cannot_read() -> None:
    """Neither in a filter nor in the extra fields of the event."""
    plant = TopicFilterHarness(twin_harness())
    resources = {"thing:/": granting("READ"), "thing:/features/secret": {"grant": [], "revoke": ["READ"]}}
    plant.harness.write_policy({"VIEW": entry([VIEWER], resources)})
    event = plant.apply("modify", "/features", {"open": {}, "secret": {}})
    hidden, seen = "eq(feature:id,'secret')", "eq(feature:id,'open')"
    assert isinstance(plant.judge(interest(hidden), event), TwinEvent)
    assert plant.judge(interest(hidden, subjects=[VIEWER]), event) is SuppressionReason.FILTER
    assert isinstance(plant.judge(interest(seen, subjects=[VIEWER]), event), TwinEvent)
    named = interest(extra="attributes/{{ feature:id }}", subjects=[VIEWER])
    plant.apply("modify", "/attributes", {"open": 1, "secret": 2})
    assert extra_of(plant.judge(named, event)) == {"attributes": {"open": 1}}


def test_extra_fields_are_read_with_the_permissions_of_the_target() -> None:
    plant = a_plant(
        {"thing:/": granting("READ"), "thing:/attributes/secret": revoking("READ")}, attributes={"secret": 7, "open": 1}
    )
    event = plant.apply("modify", "/features", {})
    assert extra_of(plant.judge(interest(extra="attributes", subjects=[VIEWER]), event)) == {"attributes": {"open": 1}}
    assert extra_of(plant.judge(interest(extra="attributes/secret", subjects=[VIEWER]), event)) is None
    assert extra_of(plant.judge(interest(extra="attributes"), event)) == {"attributes": {"secret": 7, "open": 1}}


def test_fields_beside_the_document_can_be_asked_for_too() -> None:
    plant = a_plant({"thing:/": granting("READ"), "policy:/entries/VIEW": granting("READ")})
    event = plant.apply("modify", "/attributes/a", 1)
    extra = extra_of(plant.judge(interest(extra="_revision,_policy(policyId,entries)", subjects=[VIEWER]), event))
    assert extra["_revision"] == 2
    assert list(extra["_policy"]["entries"]) == ["VIEW"]


def test_without_a_readable_part_a_signal_has_no_extra_fields_beside_the_document() -> None:
    beside = "_revision,_created,_modified,_namespace,_policy"
    plant = a_plant(
        {"message:/": granting("READ"), "policy:/": granting("READ"), "thing:/attributes/gone": granting("READ")},
        attributes={"gone": 1, "secret": 2},
    )
    deletion = plant.apply("delete", "/attributes/gone")
    assert extra_of(plant.judge(interest(extra=beside, subjects=[VIEWER]), deletion)) is None
    message = plant.judge(TopicFilter([f"{MESSAGES}?extraFields={beside}"], [VIEWER]), PING)
    assert isinstance(message, Message)
    assert message.extra is None


def test_extra_fields_of_the_feature_that_changed() -> None:
    plant = a_plant(features={"a": {"definition": ["acme:a:1"]}, "b": {"definition": ["acme:b:1"]}})
    wanted = interest(extra="attributes/n,features/{{ feature:id }}/definition")
    event = plant.apply("modify", "/features/a/properties/on", True)
    assert extra_of(plant.judge(wanted, event)) == {"features": {"a": {"definition": ["acme:a:1"]}}}
    event = plant.apply("modify", "/attributes/n", 4)
    assert extra_of(plant.judge(wanted, event)) == {"attributes": {"n": 4}}


def test_the_end_of_a_thing_with_an_unknown_last_state_has_no_extra_fields() -> None:
    plant = a_plant({"thing:/attributes/public": granting("READ")}, attributes={"public": 1})
    event = plant.apply("delete")
    for subject in (OWNER, VIEWER):
        answer = plant.judge(interest(extra="attributes", subjects=[subject]), event)
        assert isinstance(answer, TwinEvent)
        assert (answer.action, answer.value, answer.extra) == ("deleted", None, None)
    assert plant.judge(interest(subjects=["edge:stranger"]), event) is SuppressionReason.FORBIDDEN


def test_an_event_of_a_thing_that_is_gone_by_now_has_no_extra_fields() -> None:
    plant = a_plant(attributes={"a": 1})
    event = plant.apply("modify", "/attributes/a", 2)
    plant.apply("delete")
    assert extra_of(plant.judge(interest(extra="attributes"), event)) is None


def test_an_event_newer_than_the_stored_state_gets_no_extra_fields() -> None:
    plant = a_plant(attributes={"a": 1})
    event = plant.apply("modify", "/attributes/a", 2)
    ahead = TwinEvent(event.entity, event.revision + 1, event.timestamp, "modified", "/attributes/a", b"3", {})
    assert plant.judge(interest(extra="attributes"), ahead) is SuppressionReason.ENRICHMENT
    assert plant.judge(interest("eq(attributes/b,1)", "attributes/a"), ahead) is SuppressionReason.FILTER


def test_the_events_of_a_thing_without_a_policy_are_forbidden() -> None:
    plant = TopicFilterHarness()
    event = plant.apply("modify", "/attributes/a", 1)
    stranger = TwinEvent(EntityId(EntityType.THING, "acme", "x"), 1, event.timestamp, "modified", "/", b"{}", {})
    assert plant.judge(ALL_EVENTS, stranger) is SuppressionReason.FORBIDDEN


def test_events_of_policies_have_no_topic() -> None:
    plant = TopicFilterHarness()
    plant.harness.write_policy({})
    assert plant.judge(ALL_EVENTS, on_its_way(plant.harness.events[-1])) is SuppressionReason.TOPIC


def test_a_target_without_the_topic_receives_nothing() -> None:
    plant = TopicFilterHarness()
    event = plant.apply("modify", "/attributes/a", 1)
    assert plant.judge(TopicFilter(["_/_/things/live/events"], [OWNER]), event) is SuppressionReason.TOPIC
    assert plant.judge(TopicFilter([], [OWNER]), event) is SuppressionReason.TOPIC


def test_a_target_with_full_read_permission_gets_the_unchanged_event() -> None:
    plant = TopicFilterHarness()
    event = plant.apply("modify", "/attributes/a", 1)
    assert plant.judge(ALL_EVENTS, event) is event


def test_targets_that_share_a_signal_context_decide_as_if_each_were_alone() -> None:
    plant = a_plant({"thing:/attributes/n": granting("READ")}, attributes={"n": 1, "site": "N"})
    event = plant.apply("modify", "/attributes", {"n": 2, "site": "S"})
    filters = [None, "eq(attributes/n,2)", "eq(attributes/site,'S')", "eq(topic:action,'modified')"]
    extras = [None, "attributes/site", "attributes/n"]
    targets = [interest(f, e, subjects=[who]) for f in filters for e in extras for who in (OWNER, VIEWER)]
    shared = SignalContext(event, plant, plant.now)
    assert [each.filter(shared) for each in targets] == [plant.judge(each, event) for each in targets]


# --- live signals --------------------------------------------------------------------------------------------------------

MESSAGES, COMMANDS, EVENTS = (f"_/_/things/live/{kind}" for kind in ("messages", "commands", "events"))
PING = Message(thing(THING), "to", "ping", "/inbox/messages/ping", b"1", {"x-shift": "night"})
TURN = LiveCommand(thing(THING), "modify", "/attributes/on", b"true", {})
LIVE_EVENT = LiveEvent(thing(THING), "modified", "/features/lamp/properties/on", b"7", {})


@each_row(
    ("signal", "topic", "passes"),
    [
        (PING, MESSAGES, True),
        (PING, COMMANDS, False),
        (PING, f"{MESSAGES}?namespaces=acme.other", False),
        (PING, f"{MESSAGES}?namespaces=acme.other,acme.plant", True),
        (PING, f"{MESSAGES}?filter=eq(topic:subject,'ping')", True),
        (PING, f"{MESSAGES}?filter=eq(topic:action-subject,'pong')", False),
        (PING, f"{MESSAGES}?filter=and(eq(topic:channel,'live'),eq(topic:criterion,'messages'))", True),
        (PING, f"{MESSAGES}?filter=like(resource:path,'/inbox/*')", True),
        (PING, f"{MESSAGES}?filter=eq(header:x-shift,'night')", True),
        (PING, f"{MESSAGES}?filter=exists(attributes/site)", False),
        (PING, f"{MESSAGES}?filter=eq(attributes/site,'N')&extraFields=attributes/site", True),
        (PING, f"{MESSAGES}?filter=eq(attributes/site,'S')&extraFields=attributes/site", False),
        (PING, f"{MESSAGES}?filter=gt(time:now,'2030')", True),
        (TURN, COMMANDS, True),
        (TURN, EVENTS, False),
        (TURN, f"{COMMANDS}?filter=eq(attributes/on,true)", True),
        (TURN, f"{COMMANDS}?filter=eq(topic:action,'modify')", True),
        (TURN, f"{COMMANDS}?filter=eq(topic:action,'modified')", False),
        (LIVE_EVENT, EVENTS, True),
        (LIVE_EVENT, f"{EVENTS}?filter=eq(feature:id,'lamp')", True),
        (LIVE_EVENT, f"{EVENTS}?filter=gt(features/lamp/properties/on,7)", False),
        (LIVE_EVENT, f"{EVENTS}?filter=ge(features/lamp/properties/on,7)", True),
    ],
)
def test_a_live_signal_is_checked_in_the_same_way(signal: Live, topic: str, passes: bool) -> None:
    plant = a_plant(attributes={"site": "N"})
    answer = plant.judge(TopicFilter([topic], [OWNER]), signal)
    assert isinstance(answer, type(signal)) is passes


def test_late_events_of_a_deleted_and_recreated_thing_are_checked_with_its_former_policy() -> None:
    """A target may lag behind a deletion and a re-creation by another owner, at the same timestamp."""
    plant = TopicFilterHarness()
    before = plant.apply("modify", "/attributes/a", 1)
    deleted = plant.apply("delete")
    plant.harness.send("delete", to=policy(POLICY))
    theirs = {"entries": {"E": entry([VIEWER], {"thing:/": ALL, "policy:/": ALL})}}
    plant.harness.send("create", "/", {"_policy": {"policyId": POLICY, **theirs}, "attributes": {"b": 2}}, by=[VIEWER])
    created = on_its_way(plant.harness.events[-1], {})
    whole = [f"{TWIN_EVENTS}?extraFields=attributes"]
    for subject, expected in ((OWNER, [before, deleted]), (VIEWER, [created])):
        answers = [plant.judge(TopicFilter(whole, [subject]), event) for event in (before, deleted, created)]
        filtered = [answer for answer in answers if isinstance(answer, TwinEvent)]
        assert [event.revision for event in filtered] == [event.revision for event in expected]
        extra = None if subject == OWNER else b'{"attributes":{"b":2}}'
        assert {event.extra for event in filtered} == {extra}


def test_a_live_signal_gets_extra_fields_as_its_reader_sees_them() -> None:
    plant = a_plant(
        {"message:/": granting("READ"), "thing:/attributes/site": granting("READ")}, attributes={"site": "N", "pin": 4}
    )
    for subject, expected in (
        (OWNER, {"attributes": {"site": "N", "pin": 4}}),
        (VIEWER, {"attributes": {"site": "N"}}),
    ):
        answer = plant.judge(TopicFilter([f"{MESSAGES}?extraFields=attributes"], [subject]), PING)
        assert isinstance(answer, Message)
        assert answer.extra is not None
        assert json.loads(answer.extra) == expected
        assert (answer.value, answer.headers) == (PING.value, PING.headers)


def test_a_live_signal_that_may_not_be_read_is_forbidden() -> None:
    plant = a_plant({"thing:/": granting("READ"), "thing:/attributes/on": revoking("READ")})
    assert plant.judge(TopicFilter([MESSAGES], [VIEWER]), PING) is SuppressionReason.FORBIDDEN
    assert plant.judge(TopicFilter([COMMANDS], [VIEWER]), TURN) is SuppressionReason.FORBIDDEN
    assert isinstance(plant.judge(TopicFilter([EVENTS], [VIEWER]), LIVE_EVENT), LiveEvent)


@pytest.mark.parametrize(
    ("signal", "attributes"),
    [
        (PING, None),
        (TURN, {"on": True}),
        (LiveCommand(thing(THING), "merge", "/attributes", b'{"on":true,"off":null}', {}), {"on": True}),
        (LiveCommand(thing(THING), "delete", "/attributes/on", None, {}), None),
        (LiveCommand(thing(THING), "retrieve", "/attributes/on", None, {}), None),
        (LiveEvent(thing(THING), "modified", "/attributes/on", b"7", {}), {"on": 7}),
        (LiveEvent(thing(THING), "deleted", "/attributes/on", None, {}), None),
    ],
)
def test_a_filter_reads_the_thing_fields_that_a_live_signal_carries(signal: Live, attributes: object) -> None:
    plant = TopicFilterHarness()
    happening = SignalContext(signal, plant, plant.now)
    document = happening.described_thing(happening.value)
    assert document["thingId"] == THING
    assert document.get("attributes") == attributes
    assert "_revision" not in document


# --- the pages ----------------------------------------------------------------------------------------------------------

DOCS = ROOT / "docs"
FILTERS = (DOCS / "reference" / "filters.md").read_text("utf-8")
OF_TARGETS = re.findall(
    r"^\| `([a-z]+\(.*)` \| (none|[0-9, ]+) \|$", FILTERS.partition("## Filters of targets")[2], re.MULTILINE
)
LAMP = thing("acme.site:lamp-7")


def history_of_the_page() -> list[TwinEvent]:
    shown = json.loads(re.findall(r"```json\n(.*?)```", FILTERS, re.DOTALL)[0])
    return [
        TwinEvent(
            LAMP,
            each["revision"],
            each["timestamp"],
            each["action"],
            each["path"],
            json.dumps(each["value"]).encode() if "value" in each else None,
            {},
        )
        for each in shown
    ]


class PageHistory(WithoutPast):
    """A present in which all of the page's history has happened."""

    def snapshot(self, entity: EntityId) -> Snapshot:
        return Snapshot(entity, 8, "", "", {"attributes": {"serial": "B7-0091"}}, "acme.site:pol-7")

    def enforcer(self, _policy_id: str, _namespace: str | None = None) -> Enforcer:
        return Enforcer({"entries": {"OWNER": entry([OWNER], {"thing:/": granting("READ")})}})

    def now(self) -> datetime:
        return datetime(2030, 1, 15, 7, 40, tzinfo=UTC)


@each_row(("filter", "revisions"), OF_TARGETS, ids=[filter for filter, _ in OF_TARGETS])
def test_a_filter_of_a_target_lets_those_pass_that_the_page_names(filter: str, revisions: str) -> None:
    extra = "attributes/serial" if (filter, revisions) in OF_TARGETS[-2:] else None
    target, present = interest(filter, extra), PageHistory()
    found = [
        event.revision
        for event in history_of_the_page()
        if isinstance(target.filter(SignalContext(event, present, present.now)), TwinEvent)
    ]
    assert found == [int(revision) for revision in re.findall(r"\d+", revisions)]
    assert len(OF_TARGETS) == 10


def test_the_targets_page_shows_the_message_that_is_sent() -> None:
    page = (DOCS / "reference" / "targets.md").read_text("utf-8")
    shown = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    (target,) = re.findall(r'^  - "(_/_/things/twin/events.*)"$', page, re.MULTILINE)
    plant = a_plant(
        {"thing:/": granting("READ"), "thing:/attributes/contract": revoking("READ")},
        attributes={"hall": "N", "serial": "B7-0091", "contract": "C-8"},
    )
    change = {"kw": 11.75, "contract": "C-9"}
    assert json.dumps(change) in page
    event = plant.apply("merge", "/attributes", change, correlation_id="c-41")
    filtered = plant.judge(TopicFilter([target], [VIEWER]), event)
    assert isinstance(filtered, TwinEvent)
    (envelope,) = load_codec("Ditto").encode(filtered, None)
    passing = {"revision", "timestamp"}
    written = {name: value for name, value in json.loads(envelope.payload).items() if name not in passing}
    assert written == {name: value for name, value in shown.items() if name not in passing}
    contract = plant.apply("modify", "/attributes/contract", "C-10")
    assert plant.judge(TopicFilter([target], [VIEWER]), contract) is SuppressionReason.FORBIDDEN
