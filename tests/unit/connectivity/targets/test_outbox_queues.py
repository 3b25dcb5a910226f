"""Lanes and the links they share: one window, a turn for each, nothing overtaken when a lane changes over."""

from __future__ import annotations

from connectivity.targets.outbox import MAX_FAILED_LINKS, LinkWindow, OrderedQueue, PendingPublish
from connectivity.transports.base import OutboundMessage
from mappings.model.envelope import Envelope
from tests.support.in_process.fakes import Link


def post(lane: OrderedQueue, *names: str) -> list[object]:
    """Post messages one by one; what became of each."""
    outcomes: list[object] = []
    for name in names:
        lane.post([OutboundMessage("out", Envelope(name.encode()))], PendingPublish(1, outcomes.append))
    return outcomes


def sent(link: Link) -> list[str]:
    return [message.envelope.payload.decode() for message in link.published]


def test_queues_on_one_link_share_its_window() -> None:
    link, one, two = Link(window=3), OrderedQueue(), OrderedQueue()
    carrier = LinkWindow(link)
    one.use(carrier)
    two.use(carrier)
    post(one, "a1", "a2")
    post(two, "b1", "b2")
    assert sent(link) == ["a1", "a2", "b1"]
    link.confirm(1)
    assert sent(link) == ["a1", "a2", "b1", "b2"]


def test_a_full_queue_does_not_keep_the_other_waiting() -> None:
    link, one, two = Link(window=1), OrderedQueue(), OrderedQueue()
    carrier = LinkWindow(link)
    one.use(carrier)
    two.use(carrier)
    post(one, *(f"a{number}" for number in range(50)))
    post(two, "b1", "b2")
    for _ in range(6):
        link.confirm(1)
    assert {"b1", "b2"} <= set(sent(link))


def test_a_queue_changes_over_when_nothing_of_it_is_in_flight() -> None:
    first, second, lane = Link(window=2), Link(), OrderedQueue()
    lane.use(LinkWindow(first))
    outcomes = post(lane, "a", "b", "c")
    lane.use(LinkWindow(second))
    assert (sent(first), sent(second)) == (["a", "b"], [])
    first.confirm(1)
    assert (sent(first), sent(second)) == (["a", "b"], [])
    first.confirm(1)
    assert (sent(first), sent(second)) == (["a", "b"], ["c"])
    second.confirm()
    assert outcomes == [None] * 3


def test_a_change_over_that_is_called_off_continues_where_it_was() -> None:
    first, second, lane = Link(window=1), Link(), OrderedQueue()
    here = LinkWindow(first)
    lane.use(here)
    post(lane, "a", "b")
    lane.use(LinkWindow(second))
    lane.use(here)
    first.confirm()
    assert (sent(first), sent(second)) == (["a", "b"], [])


def test_a_link_that_dies_while_its_queue_is_about_to_leave_leaves_nothing_behind() -> None:
    first, second, lane = Link(window=2), Link(), OrderedQueue()
    here, there = LinkWindow(first), LinkWindow(second)
    lane.use(here)
    post(lane, "a", "b", "c")
    lane.use(there)
    lane.lose()
    lane.use(there)
    for _ in range(3):
        second.confirm()
    assert sent(second) == ["a", "b", "c"]


def test_a_marked_position_is_reached_after_the_messages_before_it() -> None:
    link, lane = Link(window=1), OrderedQueue()
    lane.use(LinkWindow(link))
    post(lane, "a", "b")
    reached: list[object] = []
    lane.mark(PendingPublish(1, reached.append))
    for expected in ([], [], [None]):
        assert reached == expected
        link.confirm()


def test_a_queue_is_suspect_when_links_have_died_twice_with_its_messages() -> None:
    lane = OrderedQueue()
    post(lane, "poison")
    for number in range(2):
        assert lane.is_suspect is (number > 1)
        lane.use(LinkWindow(Link()))
        lane.lose()
    assert lane.is_suspect
    link = Link()
    lane.use(LinkWindow(link))
    link.confirm()
    assert not lane.is_suspect
    assert MAX_FAILED_LINKS > 2
