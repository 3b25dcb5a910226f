"""Topic paths of the Ditto protocol."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mappings.errors import Fault, UnknownTopic
from mappings.ids import EntityId, EntityType
from mappings.model.signals import (
    Acknowledgement,
    Acknowledgements,
    Cancel,
    Command,
    Complete,
    Created,
    EndReason,
    ErrorResponse,
    Failed,
    HistoryQuery,
    Next,
    Request,
    Response,
    Subscribe,
    SubscriptionKind,
    TwinEvent,
)
from mappings.model.topic_path import TopicPath, entity_topic, parse_topic, topic_of
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
RULES = EntityId(EntityType.POLICY, "acme.site", "pol-7")
FAULT = Fault(404, "things:thing.notfound", "There is no such thing.")


@each_row(
    ("text", "parts"),
    [
        ("a.b/lamp/things/twin/commands/modify", ("a.b", "lamp", "things", "twin", "commands", "modify", None)),
        ("a.b/lamp/things/live/messages/on/off", ("a.b", "lamp", "things", "live", "messages", None, "on/off")),
        ("a.b/lamp/things/twin/acks", ("a.b", "lamp", "things", "twin", "acks", None, None)),
        ("a.b/lamp/things/twin/acks/mine:done", ("a.b", "lamp", "things", "twin", "acks", None, "mine:done")),
        ("a.b/lamp/things/twin/errors", ("a.b", "lamp", "things", "twin", "errors", None, None)),
        ("a.b/lamp/things/none/streaming/cancel", ("a.b", "lamp", "things", "none", "streaming", "cancel", None)),
        ("_/_/things/twin/search/subscribe", ("_", "_", "things", "twin", "search", "subscribe", None)),
        ("a/p/policies/streaming/request", ("a", "p", "policies", None, "streaming", "request", None)),
        ("a/p/policies/announcements/gone", ("a", "p", "policies", None, "announcements", None, "gone")),
        ("/lamp 7:x/things/twin/events/merged", ("", "lamp 7:x", "things", "twin", "events", "merged", None)),
    ],
)
def test_a_topic_is_its_parts_and_its_parts_are_the_topic(text: str, parts: tuple[str | None, ...]) -> None:
    topic = parse_topic(text)
    assert topic == parts
    assert str(topic) == topic.full == text


def test_segments_after_the_action_of_streaming_and_search_are_ignored() -> None:
    assert str(parse_topic("a/b/things/twin/streaming/request/and/more")) == "a/b/things/twin/streaming/request"
    assert str(parse_topic("_/_/things/twin/search/cancel/x")) == "_/_/things/twin/search/cancel"


@each_row(
    ("text", "description"),
    [
        ("", "The topic path has no namespace part."),
        ("acme.site", "The topic path has no entity name part."),
        ("acme.site/lamp-7", "The topic path has no group part."),
        ("acme.site//things/twin/commands/modify", "The topic path has no group part."),
        ("a/b/robots", "Group name <robots> is unknown."),
        ("a/b/things", "The topic path has no channel part."),
        ("a/b/things/foo", "Channel name <foo> is unknown."),
        ("a/b/things/streaming/request", "Channel name <streaming> is unknown."),
        ("a/b/policies", "The topic path has no criterion part."),
        ("a/b/things/twin/foo", "Criterion name <foo> is unknown."),
        ("a/b/policies/none/streaming/request", "Criterion name <none> is unknown."),
        ("a/b/things/twin/commands", "The topic path has no action part."),
        ("a/b/things/twin/events/made", "Action name <made> is unknown."),
        ("a/b/things/twin/events/modify", "Action name <modify> is unknown."),
        ("a/b/things/twin/search", "The topic path has no search action part."),
        ("a/b/things/twin/streaming", "The topic path has no search action part."),
        ("a/b/things/twin/streaming/foo", "Streaming action name <foo> is unknown."),
        ("a/b/things/twin/search/foo", "Search action name <foo> is unknown."),
        ("a/b/things/live/streaming/request", "Check if the topic path is correct."),
        ("a/b/things/none/commands/modify", "Check if the topic path is correct."),
        ("a/b/things/none/search/subscribe", "Check if the topic path is correct."),
        ("a/b/things/twin/messages/on", "Check if the topic path is correct."),
        ("a/b/policies/search/subscribe", "Check if the topic path is correct."),
        ("_/c/connections/streaming/request", "Check if the topic path is correct."),
    ],
)
def test_an_invalid_topic_reports_its_error(text: str, description: str) -> None:
    with pytest.raises(UnknownTopic) as caught:
        parse_topic(text)
    fault = caught.value.fault
    assert (fault.status, fault.error) == (400, "protocoladapter:unknown.topicpath")
    assert fault.message == f"The topic path '{text}' is not supported."
    assert fault.description == description


def test_known_parts_in_a_wrong_combination_still_name_their_entity() -> None:
    with pytest.raises(UnknownTopic) as caught:
        parse_topic("acme.site/pol-7/policies/search/subscribe")
    assert (caught.value.entity, caught.value.group) == (RULES, "policies")


def test_a_topic_knows_the_type_of_its_entity() -> None:
    assert parse_topic("a/b/policies/errors").entity_type is EntityType.POLICY
    assert parse_topic("a/b/things/twin/errors").entity_type is EntityType.THING


def test_a_long_topic_is_parsed_and_its_error_is_short() -> None:
    assert parse_topic(f"a/{'b' * 5000}/things/twin/commands/modify").name == "b" * 5000
    with pytest.raises(UnknownTopic) as caught:
        parse_topic("a/b/" + "c" * 5000)
    assert len(str(caught.value)) < 300


NAMES = st.sampled_from(["", "_", "a.b"]) | st.text(st.characters(exclude_characters="/"), min_size=1, max_size=3)
GROUPS = st.sampled_from(["things/twin", "things/live", "policies"])
CRITERIA = st.sampled_from(["commands/modify", "commands/create", "acks", "acks/a:b", "errors", "events/x", "commands"])


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["", "a", "_", "things", "policies", "twin", "none", "streaming", "acks", "commands", "request"]
        )
        | st.text(max_size=3),
        max_size=8,
    ).map("/".join)
    | st.tuples(NAMES, NAMES, GROUPS, CRITERIA).map("/".join)
)
@example("//")
@example("/")
def test_any_text_is_a_topic_or_an_unknown_topic(text: str) -> None:
    try:
        topic = parse_topic(text)
    except UnknownTopic:
        return
    accepted()
    assert parse_topic(str(topic)) == topic


@each_row(
    ("signal", "topic"),
    [
        (Command(LAMP, "modify", "/", None, {}), "acme.site/lamp-7/things/twin/commands/modify"),
        (Response(RULES, "create", "/", 201, b"{}", {}), "acme.site/pol-7/policies/commands/create"),
        (TwinEvent(LAMP, 1, "", "created", "/", b"{}", {}), "acme.site/lamp-7/things/twin/events/created"),
        (ErrorResponse(LAMP, "things", FAULT, {}), "acme.site/lamp-7/things/twin/errors"),
        (ErrorResponse(LAMP, "policies", FAULT, {}), "acme.site/lamp-7/policies/errors"),
        (ErrorResponse(None, "policies", FAULT, {}), "unknown/unknown/things/twin/errors"),
        (
            Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP), {}),
            "acme.site/lamp-7/things/twin/streaming/subscribeForPersistedEvents",
        ),
        (Request(SubscriptionKind.HISTORY, "k", 1, {}, RULES), "acme.site/pol-7/policies/streaming/request"),
        (Cancel(SubscriptionKind.SEARCH, "k", {}), "_/_/things/twin/search/cancel"),
        (Created(SubscriptionKind.HISTORY, "k", LAMP, {}), "acme.site/lamp-7/things/twin/streaming/created"),
        (Next(SubscriptionKind.SEARCH, "k", None, {}, [], {}), "_/_/things/twin/search/next"),
        (Complete(SubscriptionKind.HISTORY, "k", RULES, {}), "acme.site/pol-7/policies/streaming/complete"),
        (
            Failed(SubscriptionKind.HISTORY, "k", LAMP, {}, EndReason.IDLE),
            "acme.site/lamp-7/things/twin/streaming/failed",
        ),
        (Acknowledgement(LAMP, "a:b", 200, None, {}, "live"), "acme.site/lamp-7/things/live/acks/a:b"),
        (Acknowledgement(RULES, "a:b", 200, None, {}), "acme.site/pol-7/policies/acks/a:b"),
        (Acknowledgements(RULES, (), 200, {}), "acme.site/pol-7/policies/acks"),
    ],
)
def test_every_signal_has_its_topic(signal: object, topic: str) -> None:
    assert str(topic_of(signal)) == topic  # type: ignore[arg-type]


def test_policies_have_no_channel() -> None:
    assert entity_topic(RULES, "policies", "errors") == TopicPath("acme.site", "pol-7", "policies", None, "errors")


def test_the_topics_of_an_entity_are_made_once() -> None:
    first, again = (topic_of(Response(LAMP, "modify", "/", 204, None, {})) for _ in range(2))
    assert first is again
    assert first.full is again.full
