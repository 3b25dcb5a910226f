"""What a session is sent live when it does not keep up, and where it goes on after a restart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.streamr.sending import GRACE, Fate, Live, Outbox, resumed_from
from tests.clock import Clock


def test_an_outbox_is_bounded_in_messages_and_in_bytes() -> None:
    outbox = Outbox(most_messages=3, most_bytes=100)
    for _ in range(3):
        assert outbox.has_room
        outbox.put(10)
    assert not outbox.has_room
    outbox.take(10)
    assert outbox.has_room
    outbox.put(200)
    outbox.take(10)
    assert not outbox.has_room
    outbox.take(10)
    assert not outbox.has_room
    outbox.take(200)
    assert (outbox.messages, outbox.bytes, outbox.has_room) == (0, 0, True)


def test_case_b11_what_is_left_out_lies_before_the_next_that_is_sent() -> None:
    live = Live()
    assert live.offer(7, 0, has_room=True) is Fate.SEND
    assert [live.offer(offset, 0, has_room=False) for offset in (10, 13, 16, 19, 22)] == [Fate.SKIP] * 5
    assert live.last == 7
    live.drained(1)
    assert live.owed(1, has_room=True) is None
    assert live.offer(25, 1.5, has_room=True) is Fate.SEND
    assert live.owed_at() is None


def test_the_newest_that_was_left_out_is_sent_where_no_other_follows() -> None:
    clock = Clock()
    live = Live(7)
    live.offer(10, clock.now(), has_room=False)
    live.offer(13, clock.now(), has_room=False)
    assert repr(live) == "<Live: sent 7, left out up to 13>"
    live.drained(clock.advance(100))
    assert live.owed_at() == clock.now() + GRACE
    assert live.owed(clock.advance(GRACE / 2), has_room=True) is None
    assert live.owed(clock.advance(GRACE / 2), has_room=False) is None
    assert live.owed(clock.now(), has_room=True) == 13
    assert live.offer(13, clock.now(), has_room=True) is Fate.SEND
    assert live.owed(clock.advance(99), has_room=True) is None


def test_what_cannot_be_resent_is_not_left_out() -> None:
    live = Live(7)
    assert live.offer(10, 0, has_room=False, is_kept=False) is Fate.WAIT
    assert live.offer(10, 0, has_room=True, is_kept=False) is Fate.SEND


def test_nothing_is_sent_twice() -> None:
    live = Live(7)
    assert live.offer(7, 0, has_room=True) is live.offer(3, 0, has_room=False) is Fate.KNOWN


@pytest.mark.parametrize(
    ("last", "missed", "most", "after"),
    [(7, 3, 1000, 7), (7, 1000, 1000, 7), (7, 1001, 1000, None), (7, 0, 0, 7), (None, 0, 1000, None)],
)
def test_case_b10_a_subscription_catches_up_on_what_it_missed_unless_that_is_too_much(
    last: int | None, missed: int, most: int, after: int | None
) -> None:
    assert resumed_from(last, missed, most) == after


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30))
def test_a_client_that_asks_for_holes_ends_with_every_message(course: list[tuple[bool, int]]) -> None:
    """A message is appended or not, the session has room or not, time passes; at last there is room and silence."""
    clock = Clock()
    live = Live(0)
    appended = [0]
    known = [0]

    def receive(offset: int) -> None:
        """As the protocol's clients do: what lies between the last one and the predecessor is asked for."""
        known.extend(range(known[-1] + 1, offset + 1))

    for has_room, seconds in [*course, (True, 0)]:
        clock.advance(seconds)
        if (owed := live.owed(clock.now(), has_room=has_room)) is not None:
            assert live.offer(owed, clock.now(), has_room=True) is Fate.SEND
            receive(owed)
        if seconds:
            appended.append(appended[-1] + 1)
            if live.offer(appended[-1], clock.now(), has_room=has_room) is Fate.SEND:
                receive(appended[-1])
    if (due := live.owed_at()) is not None and (owed := live.owed(due, has_room=True)) is not None:
        receive(owed)
    assert known == appended
