"""The queues of an outbox and the links that they share: window, turns and order.

Also when a queue changes its link.
"""

from __future__ import annotations

import asyncio

from connectivity.targets.outbox import (
    FIRST_IN_A_ROW,
    MAX_FAILED_LINKS,
    REFILL,
    LinkWindow,
    OrderedQueue,
    PendingPublish,
)
from connectivity.transports.base import OutboundMessage
from mappings.model.envelope import Envelope
from tests.support.in_process.fakes import Link


def post(queue: OrderedQueue, *names: str) -> list[object]:
    """Post messages one by one; what became of each."""
    outcomes: list[object] = []
    for name in names:
        queue.post([OutboundMessage("out", Envelope(name.encode()))], PendingPublish(1, outcomes.append))
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


async def test_a_large_full_window_is_filled_again_after_several_confirms() -> None:
    link, queue = Link(window=3 * REFILL), OrderedQueue()
    queue.use(LinkWindow(link))
    post(queue, *(f"m{number}" for number in range(3 * REFILL + 3)))
    link.confirm(1)
    link.confirm(1)
    assert len(sent(link)) == 3 * REFILL
    link.confirm(1)
    assert len(sent(link)) == 3 * REFILL + 3


async def test_a_window_is_refilled_while_most_of_its_messages_stay_unconfirmed() -> None:
    link, queue = Link(window=3 * REFILL), OrderedQueue()
    queue.use(LinkWindow(link))
    post(queue, *(f"m{number}" for number in range(3 * REFILL + 4)))
    for _ in range(2):
        link.confirm(1)
        await asyncio.sleep(0)
    assert len(sent(link)) == 3 * REFILL + 2


async def test_messages_that_wait_for_several_confirms_are_sent_before_a_new_one() -> None:
    link, queue = Link(window=3 * REFILL), OrderedQueue()
    queue.use(LinkWindow(link))
    post(queue, *(f"m{number}" for number in range(3 * REFILL + 1)))
    link.confirm(2)
    post(queue, "new")
    assert sent(link)[3 * REFILL :] == [f"m{3 * REFILL}", "new"]


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


def test_a_message_does_not_overtake_the_other_queue_that_waits_for_room() -> None:
    """The second queue has no waiting message, but the first one is next when the link has capacity."""
    link, one, two = Link(window=2), OrderedQueue(), OrderedQueue()
    window = LinkWindow(link)
    one.use(window)
    two.use(window)
    post(one, "a1", "a2", "a3")
    link.window = 3
    post(two, "b1")
    assert sent(link) == ["a1", "a2", "a3"]


def test_a_queue_changes_its_link_when_none_of_its_messages_is_in_flight() -> None:
    first, second, queue = Link(window=2), Link(), OrderedQueue()
    queue.use(LinkWindow(first))
    outcomes = post(queue, "a", "b", "c")
    queue.use(LinkWindow(second))
    assert (sent(first), sent(second)) == (["a", "b"], [])
    first.confirm(1)
    assert (sent(first), sent(second)) == (["a", "b"], [])
    first.confirm(1)
    assert (sent(first), sent(second)) == (["a", "b"], ["c"])
    second.confirm()
    assert outcomes == [None] * 3


def test_a_change_over_that_is_called_off_continues_where_it_was() -> None:
    first, second, queue = Link(window=1), Link(), OrderedQueue()
    here = LinkWindow(first)
    queue.use(here)
    post(queue, "a", "b")
    queue.use(LinkWindow(second))
    queue.use(here)
    first.confirm()
    assert (sent(first), sent(second)) == (["a", "b"], [])


def test_a_link_that_dies_while_its_queue_is_about_to_leave_leaves_nothing_behind() -> None:
    first, second, queue = Link(window=2), Link(), OrderedQueue()
    here, there = LinkWindow(first), LinkWindow(second)
    queue.use(here)
    post(queue, "a", "b", "c")
    queue.use(there)
    queue.lose()
    queue.use(there)
    for _ in range(3):
        second.confirm()
    assert sent(second) == ["a", "b", "c"]


def test_a_marked_position_is_reached_after_the_messages_before_it() -> None:
    link, queue = Link(window=1), OrderedQueue()
    queue.use(LinkWindow(link))
    post(queue, "a", "b")
    reached: list[object] = []
    queue.mark(PendingPublish(1, reached.append))
    for expected in ([], [], [None]):
        assert reached == expected
        link.confirm()


def test_a_queue_is_suspect_when_links_have_died_twice_with_its_messages() -> None:
    queue = OrderedQueue()
    post(queue, "poison")
    for number in range(2):
        assert queue.is_suspect is (number > 1)
        queue.use(LinkWindow(Link()))
        queue.lose()
    assert queue.is_suspect
    link = Link()
    queue.use(LinkWindow(link))
    link.confirm()
    assert not queue.is_suspect
    assert MAX_FAILED_LINKS > 2


# elements and the messages that go first


class FlowPosts:
    """Posts messages of subscriptions to one queue, over a link with a window of one."""

    def __init__(self) -> None:
        self.link, self.queue = Link(window=1), OrderedQueue()
        self.queue.use(LinkWindow(self.link))
        post(self.queue, "busy")

    def elements(self, flow: str, *names: str) -> PendingPublish:
        return self._post(flow, names, is_element=True)

    def control(self, flow: str | None, *names: str) -> PendingPublish:
        return self._post(flow, names, is_element=False)

    def _post(self, flow: str | None, names: tuple[str, ...], *, is_element: bool) -> PendingPublish:
        posting = PendingPublish(len(names), None, flow=flow, is_element=is_element)
        self.queue.post([OutboundMessage("out", Envelope(name.encode())) for name in names], posting)
        return posting

    def rest(self) -> list[str]:
        """Confirm one message after the other; return the messages sent meanwhile."""
        before = len(self.link.published)
        while len(self.queue):
            self.link.confirm()
        return sent(self.link)[before:]


def test_control_messages_go_before_the_elements_of_other_subscriptions() -> None:
    flows = FlowPosts()
    flows.elements("a", "a1", "a2")
    flows.control("b", "created b")
    flows.control(None, "response")
    assert flows.rest() == ["created b", "response", "a1", "a2"]


def test_subscriptions_send_their_elements_in_turn() -> None:
    flows = FlowPosts()
    flows.elements("a", "a1", "a2", "a3", "a4")
    flows.elements("b", "b1", "b2")
    flows.elements("c", "c1")
    assert flows.rest() == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_the_messages_of_one_subscription_keep_their_order() -> None:
    flows = FlowPosts()
    flows.control("a", "created a")
    flows.elements("a", "a1", "a2")
    flows.control("a", "complete a")
    flows.elements("b", "b1")
    assert flows.rest() == ["created a", "b1", "a1", "a2", "complete a"]


def test_responses_and_events_keep_their_order() -> None:
    flows = FlowPosts()
    flows.control(None, "response 1", "event 1")
    flows.control(None, "response 2")
    assert flows.rest() == ["response 1", "event 1", "response 2"]


def test_withdrawn_elements_do_not_cost_the_terminal_message_its_turn() -> None:
    flows = FlowPosts()
    flows.elements("a", "a1", "a2", "a3")
    withdrawn = flows.elements("b", "b1", "b2", "b3")
    withdrawn.withdrawn = True
    flows.control("b", "failed b")
    assert flows.rest() == ["a1", "failed b", "a2", "a3"]


def test_elements_are_sent_even_while_other_messages_keep_coming() -> None:
    flows = FlowPosts()
    flows.elements("a", "a1", "a2")
    flows.control(None, *map(str, range(3 * FIRST_IN_A_ROW)))
    order = flows.rest()
    assert order.index("a2") - order.index("a1") == FIRST_IN_A_ROW + 1


def test_messages_of_a_lost_link_are_sent_again_first_and_in_their_order() -> None:
    link, again, queue = Link(window=3), Link(), OrderedQueue()
    queue.use(LinkWindow(link))
    for flow, names in (("a", "a1 a2"), ("b", "b1 b2")):
        messages = [OutboundMessage("out", Envelope(name.encode())) for name in names.split()]
        queue.post(messages, PendingPublish(2, None, flow=flow, is_element=True))
    queue.lose(was_silent=True)
    post(queue, "response")
    queue.use(LinkWindow(again))
    assert (sent(link), sent(again)) == (["a1", "a2", "b1"], ["a1", "a2", "b1", "response", "b2"])


def test_a_mark_waits_for_responses_and_not_for_elements() -> None:
    flows, reached = FlowPosts(), list[object]()
    flows.elements("a", "a1")
    flows.control("b", "created b")
    flows.queue.mark(PendingPublish(1, reached.append))
    flows.link.confirm()
    assert (sent(flows.link), reached) == (["busy", "created b"], [])
    flows.link.confirm()
    assert (sent(flows.link), reached) == (["busy", "created b", "a1"], [None])


def test_only_waiting_answers_count_as_bytes_that_wait() -> None:
    flows = FlowPosts()
    flows.elements("a", "element")
    flows.control(None, "1234")
    assert flows.queue.answer_bytes == 4
    flows.link.confirm()
    assert flows.queue.answer_bytes == 0
    flows.queue.lose()
    assert flows.queue.answer_bytes == 4
