"""The topics of a target and their parameters."""

from __future__ import annotations

import pytest

from connectivity.connections.target_topics import TOPICS, TargetTopic, UnknownTargetTopic, parse_target_topic
from tests.support.table import each_row

EVENTS = "_/_/things/twin/events"


@each_row(
    ("text", "topic"),
    [
        (EVENTS, TargetTopic(EVENTS)),
        (f"{EVENTS}?", TargetTopic(EVENTS)),
        (f"{EVENTS}?namespaces=a.b,c", TargetTopic(EVENTS, namespaces=("a.b", "c"))),
        (f"{EVENTS}?filter=eq(a,1)&extraFields=b,c", TargetTopic(EVENTS, filter="eq(a,1)", extra_fields="b,c")),
        (f"{EVENTS}?filter=eq(a,%22b%26c%3D%2B%22)", TargetTopic(EVENTS, filter='eq(a,"b&c=+")')),
        (f"{EVENTS}?filter=eq(a,%22b+c%22)", TargetTopic(EVENTS, filter='eq(a,"b c")')),
        (f"{EVENTS}?filter=a=b", TargetTopic(EVENTS, filter="a=b")),
        (f"{EVENTS}?%66ilter=x", TargetTopic(EVENTS, filter="x")),
        (f"{EVENTS}?nonsense=1&filter=x", TargetTopic(EVENTS, filter="x", ignored=("nonsense",))),
        (f"{EVENTS}?filter=x&filter=y", TargetTopic(EVENTS, filter="x", repeated=("filter",))),
        (
            "_/_/policies/announcements?namespaces=a&filter=x",
            TargetTopic("_/_/policies/announcements", ("a",), ignored=("filter",)),
        ),
        (
            "_/_/connections/announcements?namespaces=a",
            TargetTopic("_/_/connections/announcements", ignored=("namespaces",)),
        ),
    ],
)
def test_1_7_1_a_topic_and_its_parameters(text: str, topic: TargetTopic) -> None:
    assert parse_target_topic(text) == topic


@pytest.mark.parametrize("topic", TOPICS)
def test_1_7_1_every_topic_is_known(topic: str) -> None:
    assert parse_target_topic(topic).topic == topic


def test_1_7_1_an_unknown_topic_names_the_nearest_one() -> None:
    with pytest.raises(UnknownTargetTopic) as raised:
        parse_target_topic("_/_/things/twin/event?filter=x")
    assert raised.value.nearest == EVENTS
