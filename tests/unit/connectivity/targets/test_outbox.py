"""The outbox: order, window, and what happens to unconfirmed messages when a link dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import ConnectivityError, PublishFailed, RetriesExhausted
from connectivity.targets.outbox import LARGE, MAX_FAILED_LINKS, Outbox, PendingPublish
from connectivity.targets.per_address_outbox import FEW_QUEUES, PerAddressOutbox
from connectivity.transports.base import Done, OutboundMessage
from mappings.model.envelope import Envelope
from tests.support.in_process.fakes import Link
from tests.support.wait import PATIENCE


def messages(*names: str) -> list[OutboundMessage]:
    return [OutboundMessage("out", Envelope(name.encode())) for name in names]


def sent(link: Link) -> list[str]:
    return [message.envelope.payload.decode() for message in link.published]


def test_messages_wait_until_there_is_a_link_and_leave_in_order() -> None:
    outbox, link = Outbox(), Link()
    outbox.post(messages("a", "b"))
    outbox.post(messages("c"))
    outbox.attach(link)
    assert sent(link) == ["a", "b", "c"]


def test_no_more_than_the_window_is_unconfirmed() -> None:
    outbox, link = Outbox(), Link(window=2)
    outbox.attach(link)
    outbox.post(messages("a", "b", "c", "d"))
    assert sent(link) == ["a", "b"]
    link.confirm(1)
    assert sent(link) == ["a", "b", "c"]


def test_messages_unconfirmed_by_a_dead_link_are_sent_again_first_and_in_order() -> None:
    outbox, first, second = Outbox(), Link(window=3), Link()
    outbox.attach(first)
    outbox.post(messages("a", "b", "c", "d"))
    first.confirm(1)
    outbox.detach()
    outbox.post(messages("e"))
    outbox.attach(second)
    for _ in range(4):
        second.confirm()
    assert sent(second) == ["b", "c", "d", "e"]


def test_a_confirm_that_comes_from_a_dead_link_is_not_counted() -> None:
    outbox, first, second = Outbox(), Link(), Link()
    ended: list[object] = []
    outbox.attach(first)
    outbox.post(messages("a"), ended.append)
    outbox.detach()
    outbox.attach(second)
    first.confirm()
    assert ended == []
    second.confirm()
    assert ended == [None]


def test_a_posting_ends_once_with_its_first_failure() -> None:
    outbox, link = Outbox(), Link()
    outbox.attach(link)
    ended: list[object] = []
    refused = PublishFailed("not authorized")
    outbox.post(messages("a", "b", "c"), ended.append)
    link.confirm(1)
    link.confirm(1, refused)
    assert ended == []
    link.confirm(1)
    assert ended == [refused]


async def test_an_internal_error_at_the_end_of_a_message_does_not_stop_the_messages_behind_it() -> None:
    outbox, link = Outbox(), Link(window=1)
    outbox.attach(link)

    def fail(_: ConnectivityError | None) -> None:
        raise ZeroDivisionError("an internal error")

    outbox.post(messages("a"), fail)
    outbox.post(messages("b"), fail)
    outbox.post(messages("withdrawn"), fail).withdrawn = True
    outbox.post(messages("c"))
    draining = asyncio.ensure_future(outbox.drain())
    await asyncio.sleep(0)
    with capture_logs() as lines:
        link.confirm(1)
        assert sent(link) == ["a", "b"]
        link.confirm(1, PublishFailed("not authorized"))
        assert sent(link) == ["a", "b", "c"]
    link.confirm(1)
    await asyncio.wait_for(draining, PATIENCE)
    assert [line["event"] for line in lines] == ["outcome of messages not processed"] * 3


def test_posting_nothing_ends_at_once() -> None:
    ended: list[object] = []
    Outbox().post([], ended.append)
    assert ended == [None]


async def test_taken_waits_until_the_link_has_room_for_the_last_message() -> None:
    outbox, link = Outbox(), Link(window=1)
    outbox.attach(link)
    posting = outbox.post(messages("a", "b"))
    waiting = asyncio.ensure_future(posting.wait_until_accepted())
    await asyncio.sleep(0)
    assert not waiting.done()
    link.confirm(1)
    await asyncio.wait_for(waiting, PATIENCE)


async def test_a_withdrawn_posting_does_not_send_its_remaining_messages() -> None:
    outbox, link = Outbox(), Link(window=1)
    outbox.attach(link)
    posting = outbox.post(messages("a", "b", "c"))
    outbox.post(messages("d"))
    posting.withdrawn = True
    link.confirm(1)
    assert sent(link) == ["a", "d"]
    await asyncio.wait_for(posting.wait_until_accepted(), PATIENCE)


async def test_drained_waits_for_the_last_confirm() -> None:
    outbox, link = Outbox(), Link()
    outbox.attach(link)
    outbox.post(messages("a", "b"))
    waiting = asyncio.ensure_future(outbox.drain())
    link.confirm(1)
    await asyncio.sleep(0)
    assert not waiting.done()
    link.confirm(1)
    await asyncio.wait_for(waiting, PATIENCE)


async def test_an_outbox_is_drained_for_any_end_of_the_last_message() -> None:
    """Messages that are withdrawn, a mark only, or given up are never confirmed."""
    outbox, link = Outbox(), Link(window=1)
    outbox.attach(link)
    outbox.post(messages("a"))
    posting = outbox.post(messages("b"))
    posting.withdrawn = True
    await drained_by(outbox, link.confirm)

    outbox.detach()
    outbox.post(messages("c"))
    outbox.behind(lambda _: None)
    link = Link(window=1)
    outbox.attach(link)
    await drained_by(outbox, link.confirm)

    posting = outbox.post(messages("d"))
    outbox.detach()
    posting.withdrawn = True
    await drained_by(outbox, lambda: outbox.attach(Link()))

    outbox = Outbox()
    outbox.post(messages("poison"))
    for _ in range(MAX_FAILED_LINKS):
        outbox.attach(Link())
        outbox.detach()
    outbox.attach(Link())
    await drained_by(outbox, outbox.detach)


async def drained_by(outbox: Outbox, end: Callable[[], object]) -> None:
    waiting = asyncio.ensure_future(outbox.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    end()
    await asyncio.wait_for(waiting, PATIENCE)


class Immediate(Link):
    """A link that confirms within the call."""

    def publish(self, message: OutboundMessage, done: Done) -> None:
        self.published.append(message)
        done(None)


def test_a_link_that_confirms_while_publishing_does_not_reorder() -> None:
    outbox, link = Outbox(), Immediate(window=1)
    outbox.attach(link)
    outbox.post(messages(*"abcdef"))
    assert sent(link) == list("abcdef")
    assert len(outbox) == 0


@pytest.mark.parametrize("clients", [1, 2])
def test_messages_posted_within_a_confirm_are_sent_in_order_by_the_first_call(clients: int) -> None:
    """No call is nested in another, however many messages follow each other."""
    outbox, link = Outbox(clients), Immediate()
    outbox.attach(link)
    names = [str(number) for number in range(5000)]
    following = iter(names)

    def post_next(_error: object = None) -> None:
        if (name := next(following, None)) is not None:
            outbox.post(messages(name), post_next, name)

    post_next()
    assert sent(link) == names
    assert len(outbox) == 0


def test_a_message_posted_within_a_confirm_does_not_overtake_those_of_its_flow() -> None:
    outbox, link = Outbox(), Immediate()
    outbox.attach(link)

    def post_more(_error: object) -> None:
        outbox.post(messages(*"bc"))
        outbox.post(messages("d"))

    outbox.post(messages("a"), post_more)
    assert sent(link) == list("abcd")


def test_a_marker_is_reached_after_the_link_has_accepted_the_messages_before_it() -> None:
    outbox, link = Outbox(), Link(window=1)
    outbox.attach(link)
    ended: list[object] = []
    outbox.behind(lambda error: ended.append("nothing waits"))
    assert ended == ["nothing waits"]
    outbox.post(messages("a", "b"))
    outbox.behind(lambda error: ended.append("behind b"))
    outbox.post(messages("c"))
    assert ended == ["nothing waits"]
    link.confirm(1)
    assert ended == ["nothing waits"]
    link.confirm(1)
    assert ended == ["nothing waits", "behind b"]
    assert sent(link) == ["a", "b", "c"]


def test_a_message_upon_which_the_broker_hangs_up_does_not_stop_those_after_it() -> None:
    """It is sent alone, on link after link, then given up as refused; what waited behind it goes out."""
    outbox = Outbox()
    ended: list[object] = []
    outbox.post(messages("poison"), ended.append)
    outbox.post(messages("b", "c"))
    for number in range(MAX_FAILED_LINKS + 1):
        link = Link()
        outbox.attach(link)
        assert sent(link) == (["poison", "b", "c"] if number == 0 else ["poison"])
        outbox.detach()
    assert [type(error) for error in ended] == [RetriesExhausted]
    link = Link()
    outbox.attach(link)
    link.confirm()
    assert sent(link) == ["b", "c"]


@pytest.mark.parametrize(("size", "status"), [(LARGE, 503), (LARGE + 1, 413)])
def test_the_size_of_a_large_message_is_thought_to_be_why_a_broker_hangs_up(size: int, status: int) -> None:
    outbox, ended = Outbox(), list[Any]()
    outbox.post([OutboundMessage("out", Envelope(bytes(size)))], ended.append)
    for _ in range(MAX_FAILED_LINKS + 1):
        outbox.attach(Link())
        outbox.detach()
    assert [error.fault.status for error in ended] == [status]


def test_the_end_of_a_link_that_confirmed_messages_is_no_failed_attempt_of_the_rest() -> None:
    outbox = Outbox()
    ended: list[object] = []
    outbox.post(messages(*"abcdefghij"), ended.append)
    for _ in range(MAX_FAILED_LINKS + 2):
        link = Link(window=2)
        outbox.attach(link)
        link.confirm(1)
        outbox.detach()
    assert ended == []


def test_messages_left_by_a_dead_link_are_sent_one_by_one_and_the_others_as_before() -> None:
    outbox, first, second = Outbox(), Link(window=2), Link()
    outbox.attach(first)
    outbox.post(messages("a", "b", "c", "d"))
    outbox.detach()
    outbox.attach(second)
    assert sent(second) == ["a"]
    second.confirm(1)
    assert sent(second) == ["a", "b"]
    second.confirm(1)
    assert sent(second) == ["a", "b", "c", "d"]


def test_successive_silent_links_do_not_reject_a_message() -> None:
    """A broker confirms nothing for long, and each link is given up in turn: no message is lost."""
    outbox = Outbox()
    ended: list[object] = []
    outbox.post(messages("a", "b"), ended.append)
    for _ in range(MAX_FAILED_LINKS + 2):
        link = Link()
        outbox.attach(link)
        assert sent(link) == ["a", "b"]
        outbox.detach(was_silent=True)
    assert ended == []
    link = Link()
    outbox.attach(link)
    link.confirm()
    assert ended == [None]


# several clients


def about(outbox: Outbox, link: Link) -> str:
    """Something whose messages go over this link."""
    for name in map(str, range(1000)):
        before = len(link.published)
        outbox.post(messages(name), about=name)
        if len(link.published) > before:
            link.published.clear()
            return name
    raise AssertionError("no queue has this address")


def two_links() -> tuple[Outbox, Link, Link]:
    outbox, first, second = Outbox(2), Link(1000), Link(1000)
    outbox.attach(first, 0)
    outbox.attach(second, 1)
    return outbox, first, second


def test_messages_with_the_same_ordering_key_use_the_same_link() -> None:
    outbox, first, second = two_links()
    for number in range(20):
        for name in map(str, range(40)):
            outbox.post(messages(f"{name}.{number}"), about=name)
    assert set(sent(first)).isdisjoint(sent(second))
    for link in (first, second):
        names = [payload.split(".") for payload in sent(link)]
        assert names
        for name in {name for name, _ in names}:
            assert [int(number) for other, number in names if other == name] == list(range(20))


def test_a_dead_link_s_messages_go_over_the_other_one_in_order_and_later_ones_return() -> None:
    outbox, first, second = two_links()
    name = about(outbox, first)
    first.confirm()
    outbox.post(messages("a", "b"), about=name)
    first.confirm(1)
    outbox.detach(0)
    outbox.post(messages("c"), about=name)
    assert sent(second)[-1:] == ["b"]
    second.confirm()
    assert sent(second)[-2:] == ["b", "c"]
    again = Link()
    outbox.attach(again, 0)
    outbox.post(messages("d"), about=name)
    assert sent(again) == [], "c is not confirmed yet"
    second.confirm()
    assert sent(again) == ["d"]


def test_the_other_link_s_own_messages_do_not_notice() -> None:
    outbox, first, second = two_links()
    mine, other = about(outbox, first), about(outbox, second)
    first.confirm()
    second.confirm()
    outbox.detach(0)
    outbox.post(messages("m"), about=mine)
    outbox.post(messages("o"), about=other)
    assert sorted(sent(second)[-2:]) == ["m", "o"]


def test_a_queue_with_a_message_that_ends_links_waits_for_its_own_client() -> None:
    outbox, first, second = two_links()
    name, other = about(outbox, first), about(outbox, second)
    for link in (first, second):
        link.confirm()
        link.published.clear()
    ended: list[object] = []
    outbox.post(messages("poison"), ended.append, about=name)
    outbox.detach(0)
    assert sent(second) == ["poison"], "once it may be by chance"
    outbox.detach(1)
    third = Link()
    outbox.attach(third, 1)
    outbox.post(messages("o"), about=other)
    assert sent(third) == ["o"]
    for _ in range(MAX_FAILED_LINKS - 1):
        own = Link()
        outbox.attach(own, 0)
        assert sent(own) == ["poison"]
        outbox.detach(0)
    assert [type(error) for error in ended] == [RetriesExhausted]
    assert sent(third) == ["o"]


def test_without_a_link_all_queues_wait_and_a_marker_waits_for_all_queues() -> None:
    outbox = Outbox(3)
    ended: list[object] = []
    for name in map(str, range(30)):
        outbox.post(messages(name), about=name)
    outbox.behind(ended.append)
    link = Link(window=29)
    outbox.attach(link, 2)
    assert (len(sent(link)), ended) == (29, [])
    link.confirm()
    assert (len(sent(link)), ended) == (30, [None])


async def test_drained_waits_for_every_queue() -> None:
    outbox, first, second = two_links()
    about(outbox, first)
    about(outbox, second)
    waiting = asyncio.ensure_future(outbox.drain())
    first.confirm()
    await asyncio.sleep(0)
    assert not waiting.done()
    second.confirm()
    await asyncio.wait_for(waiting, PATIENCE)


class HeldPositions:
    """Held positions, in order, and their outcomes."""

    def __init__(self, outbox: Outbox, sender: str = "slow") -> None:
        self._outbox, self._sender = outbox, sender
        self.ended: list[object] = []

    def hold(self, about: str | None = None) -> tuple[PendingPublish, asyncio.Future[Sequence[OutboundMessage]]]:
        posting = PendingPublish(1, self.ended.append)
        making: asyncio.Future[Sequence[OutboundMessage]] = asyncio.get_running_loop().create_future()
        self._outbox.hold(making, posting, about, self._sender)
        return posting, making


async def made(making: asyncio.Future[Sequence[OutboundMessage]], *names: str) -> None:
    making.set_result(messages(*names))
    # Callbacks of a done future are called in the next pass of the loop.
    await asyncio.sleep(0)


async def test_a_reserved_position_holds_back_later_messages_of_its_sender_only() -> None:
    outbox, link = Outbox(), Link()
    outbox.attach(link)
    slow = HeldPositions(outbox)
    (_, first), (_, second) = slow.hold(), slow.hold()
    await made(second, "c")
    outbox.post(messages("d"), sender="slow")
    outbox.post(messages("x"), sender="quick")
    assert sent(link) == ["x"]
    await made(first, "a", "b")
    assert sent(link) == ["x", "a", "b", "c", "d"]


async def test_a_held_place_is_taken_and_over_when_all_of_its_messages_are() -> None:
    outbox, link = Outbox(), Link(window=1)
    outbox.attach(link)
    slow = HeldPositions(outbox)
    posting, making = slow.hold()
    assert (posting.count, posting.taken) == (1, 0)
    await made(making, "a", "b")
    assert (posting.count, posting.taken, posting.confirmed) == (2, 1, 0)
    link.confirm(1)
    assert (posting.taken, slow.ended) == (2, [])
    link.confirm()
    assert slow.ended == [None]


async def test_a_held_place_that_stays_empty_ends_in_its_turn() -> None:
    outbox, link, ended = Outbox(), Link(), list[str]()
    outbox.attach(link)
    slow = HeldPositions(outbox)
    (_, first), (_, second) = slow.hold(), slow.hold()
    outbox.behind(lambda _: ended.append("behind"), "slow")
    outbox.behind(lambda _: ended.append("quick"), "quick")
    assert ended == ["quick"]
    await made(second)
    assert (ended, slow.ended) == (["quick"], [])
    first.cancel()
    await asyncio.sleep(0)
    assert (ended, slow.ended) == (["quick", "behind"], [None, None])
    assert len(outbox) == 0


async def test_an_outbox_is_drained_after_its_held_message_is_sent() -> None:
    outbox, link = Outbox(), Link()
    outbox.attach(link)
    _, making = HeldPositions(outbox).hold()
    drained = asyncio.ensure_future(outbox.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    await made(making)
    await drained


async def test_a_withdrawn_place_is_not_published() -> None:
    outbox, link = Outbox(), Link()
    outbox.attach(link)
    posting, making = HeldPositions(outbox).hold()
    posting.withdrawn = True
    await made(making, "a")
    assert sent(link) == []
    assert len(outbox) == 0


async def test_a_held_message_keeps_its_position_in_its_queue_when_the_link_changes() -> None:
    outbox, first, second = two_links()
    name, other = about(outbox, first), about(outbox, second)
    first.confirm()
    second.confirm()
    second.published.clear()
    _, making = HeldPositions(outbox).hold(name)
    outbox.post(messages("behind"), about=name, sender="slow")
    outbox.post(messages("elsewhere"), about=other, sender="slow")
    assert sent(second) == ["elsewhere"]
    outbox.detach(0)
    await made(making, "held")
    assert sent(second) == ["elsewhere", "held", "behind"]


# ── listeners ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def messages_to(address: str, *names: str) -> list[OutboundMessage]:
    return [OutboundMessage(address, Envelope(name.encode())) for name in names]


def test_a_slow_peer_of_a_listener_does_not_delay_the_other_peers() -> None:
    outbox, link = PerAddressOutbox(), Link(window=2)
    outbox.attach(link)
    outbox.post(messages_to("slow", "a", "b", "c", "d"))
    outbox.post(messages_to("fast", "x", "y"))
    assert sent(link) == ["a", "b", "x", "y"]
    link.confirm(1)
    assert sent(link) == ["a", "b", "x", "y", "c"]
    assert len(outbox) == 5


def test_a_listener_keeps_the_message_order_per_address_across_ordering_keys() -> None:
    outbox, link = PerAddressOutbox(), Link()
    outbox.post(messages_to("peer", "a"), about="lamp-7")
    outbox.post(messages_to("peer", "b"), about="lamp-8")
    outbox.post(messages_to("peer", "c"), about="lamp-7")
    outbox.attach(link)
    assert sent(link) == ["a", "b", "c"]


async def test_a_held_message_of_a_listener_delays_only_the_messages_to_its_address() -> None:
    outbox, link = PerAddressOutbox(), Link()
    outbox.attach(link)
    making: asyncio.Future[Sequence[OutboundMessage]] = asyncio.get_running_loop().create_future()
    outbox.hold(making, PendingPublish(1, None), None, "client", "peer")
    outbox.post(messages_to("peer", "behind"), sender="client")
    outbox.post(messages_to("other", "elsewhere"), sender="client")
    ended: list[object] = []
    outbox.behind(ended.append, "client")
    outbox.behind(ended.append, "another client")
    assert (sent(link), len(ended)) == (["elsewhere"], 1)
    making.set_result(messages_to("peer", "made"))
    await asyncio.sleep(0)
    assert sent(link) == ["elsewhere", "made", "behind"]
    assert len(ended) == 2


def test_at_a_listener_queues_that_are_empty_are_forgotten() -> None:
    outbox, link = PerAddressOutbox(), Link()
    outbox.attach(link)
    for number in range(10 * FEW_QUEUES):
        outbox.post(messages_to(f"peer-{number}", "gone soon"))
        link.confirm()
    outbox.post(messages_to("slow", "stays"))
    outbox.post(messages_to("peer-0", "stays too"))
    assert "queues, 2 messages" in repr(outbox)
    assert int(repr(outbox).split()[1]) <= FEW_QUEUES


async def test_messages_left_by_a_closed_listener_are_completed_by_the_next_listener() -> None:
    outbox, link, second = PerAddressOutbox(), Link(), Link()
    outbox.attach(link)
    outbox.post(messages_to("peer", "a", "b"))
    outbox.detach()
    assert not outbox.is_attached
    outbox.attach(second)
    assert sent(second) == ["a", "b"]
    draining = asyncio.create_task(outbox.drain())
    second.confirm(2, error=PublishFailed("nobody there"))
    await draining
    assert len(outbox) == 0
