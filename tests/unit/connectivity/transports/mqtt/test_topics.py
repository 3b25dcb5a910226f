"""Topic filters match as MQTT specifies, and invalid ones are refused."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from connectivity.transports.mqtt.mqtt311 import encode_topic
from connectivity.transports.mqtt.topics import Sources, filter_fault, is_filter, matches, topic_fault
from tests.support.table import each_row


@each_row(
    ("topic_filter", "topic"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1"),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
        ("sport/#", "sport"),
        ("#", "a/b/c"),
        ("sport/tennis/+", "sport/tennis/player2"),
        ("sport/+", "sport/"),
        ("+/+", "/finance"),
        ("/+", "/finance"),
        ("$SYS/#", "$SYS/broker/load"),
        ("$share/group/lab/+", "lab/in"),
        ("a//b", "a//b"),
    ],
)
def test_a_filter_matches(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic)


@each_row(
    ("topic_filter", "topic"),
    [
        ("sport/tennis/+", "sport/tennis/player1/ranking"),
        ("sport/+", "sport"),
        ("+", "/finance"),
        ("#", "$SYS/broker/load"),
        ("+/broker/load", "$SYS/broker/load"),
        ("a/b", "a/B"),
        ("a/b/c", "a/b"),
        ("$share/group/lab/in", "$share/group/lab/in"),
    ],
)
def test_a_filter_does_not_match(topic_filter: str, topic: str) -> None:
    assert not matches(topic_filter, topic)


@each_row("text", ["a", "/", "#", "+", "a/+/b/#", "+/+", "$share/g/a/#", "ä/ö", "a b"])
def test_a_filter_that_can_be_subscribed_to(text: str) -> None:
    assert filter_fault(text) is None


@each_row(
    "text", ["", "a/#/b", "a#", "a/b+", "+a", "##", "$share/g", "$share//a", "$share/+/a", "a\x00", "a\n", "\ud800"]
)
def test_a_filter_that_cannot(text: str) -> None:
    assert filter_fault(text) is not None


@each_row("text", ["", "a/+", "#", "a\x00b", "x" * 65536, "ä" * 32768, "a\x7f", "\uffff"])
def test_a_topic_that_cannot_be_published_to(text: str) -> None:
    assert topic_fault(text) is not None


@pytest.mark.parametrize("text", ["a", "/", "a//b", "$SYS/a", "x" * 65535, "ä" * 32767, "ä b"])
def test_a_topic_that_can(text: str) -> None:
    assert topic_fault(text) is None


def test_a_topic_belongs_to_every_source_that_matches() -> None:
    sources = Sources([["a/#", "b"], ["a/1"], ["c"]])
    assert [sources.of(topic) for topic in ("a/1", "a/2", "b", "d")] == [(0, 1), (0,), (0,), ()]


@each_row(
    ("one", "other", "expected"),
    [
        ("a/b", "a/c", False),
        ("a/+", "+/b", True),
        ("a/+/c", "a/b", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "b/#", False),
        ("#", "x/y", True),
        ("$share/g/a/+", "a/b", True),
        ("$share/g/a/+", "$share/h/b/+", False),
        ("+/b/#", "a/+", True),
        ("a//b", "a/+/b", True),
        ("a/", "a", False),
        ("a/+", "a", False),
    ],
)
def test_filters_have_subscriptions_of_their_own_if_a_topic_matches_both(one: str, other: str, expected: bool) -> None:
    found = [len(Sources([pair]).groups) for pair in ([one, other], [other, one])]
    assert found == ([2, 2] if expected else [1, 1])


def test_many_filters_are_grouped_quickly() -> None:
    """A link is made on the event loop."""
    filters = [f"fleet/{number}/+" for number in range(2000)]
    start = time.process_time()
    assert len(Sources([filters, ["fleet/#"]]).groups) == 2
    assert time.process_time() - start < 0.5, "comparing each with each would take seconds"


def test_filters_of_a_source_have_one_subscription_unless_they_overlap_or_belong_to_several_sources() -> None:
    sources = Sources([["a/#", "b", "a/1"], ["c", "b"], ["d/+", "e/+"]])
    assert list(sources.groups.values()) == [("a/#",), ("b",), ("a/1",), ("c",), ("d/+", "e/+")]


@each_row(
    ("topic", "copy_of", "expected"),
    [
        ("a/1", ["a/#"], (0,)),
        ("a/1", ["a/1"], ()),
        ("a/1", ["a/1", "a/#"], (0,)),
        ("b", ["b"], (0, 1)),
        ("c", ["c"], (1,)),
        ("a/1", ["c"], None),
        ("a/1", [], None),
        ("z", ["a/#"], None),
    ],
)
def test_a_source_takes_the_copy_of_its_first_filter_that_matches(
    topic: str, copy_of: list[str], expected: tuple[int, ...] | None
) -> None:
    sources = Sources([["a/#", "b", "a/1"], ["c", "b"]])
    numbers = [number for number, group in sources.groups.items() if group[0] in copy_of]
    assert sources.of_copy(topic, numbers or [7]) == expected


def test_a_source_takes_the_copy_of_the_subscription_that_is_made_first() -> None:
    """A message that arrives while subscriptions are made has no copy for a later one."""
    sources = Sources([["p/+", "+/1", "a/1"]])
    (first, second), groups = sources.groups, [*sources.groups.values()]
    assert groups == [("p/+", "a/1"), ("+/1",)]
    assert (sources.of_copy("a/1", [first]), sources.of_copy("a/1", [second])) == ((0,), ())


def test_a_new_filter_before_an_overlapping_one_changes_its_number() -> None:
    """Otherwise a queued message would look like a further copy of one that the new filter gets."""
    queued = next(iter(Sources([["a/+"]]).groups))
    assert Sources([["a/1", "a/+"]]).of_copy("a/1", [queued]) is None


def test_the_number_of_a_subscription_depends_only_on_the_filters_of_its_sources() -> None:
    one, other = Sources([["a", "b/#"], ["c", "d"]]).groups, Sources([["c", "d"], ["a", "b/+"]]).groups
    assert one.keys() & other.keys() == {number for number, group in one.items() if group == ("c", "d")}
    assert all(0 < number < 1 << 28 for number in one)


def test_long_topics_are_not_kept() -> None:
    sources = Sources([["a/#"]])
    tracemalloc.start()
    try:
        for number in range(100):
            topic = f"a/{number}/{'x' * 60_000}"
            assert sources.of(topic) == (0,)
            assert encode_topic(topic) == topic.encode()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20


@pytest.mark.parametrize(
    ("address", "filters"),
    [("lab/in", False), ("lab/+/in", True), ("lab/#", True), ("$share/group/lab/in", True), ("$SYS/load", False)],
)
def test_an_address_with_wildcards_or_a_group_is_a_filter(address: str, filters: bool) -> None:
    assert is_filter(address) is filters
