"""Resends: the frames of each option, their limit, and the rate limit of repeated requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import Fault
from mappings.streamr.errors import ErrorSubject, RequestRejected
from mappings.streamr.frames import Error, NoResend, Resending, Resent, Unicast, write_frame
from mappings.streamr.requests import Resend, read_request
from mappings.streamr.resends import MAX_REMEMBERED, ResendFrames, ResendLimits, Resends, ResendTicket
from mappings.streams.entry import OffsetRange, StreamEntry, encode_content
from tests.support.clock import Clock
from tests.support.dice import examples
from tests.support.oracles.streamr_resend import chosen
from tests.support.table import each_row

STORED = {7: None, 10: 7, 13: 10, 16: 13}


def stored(*timestamps: int) -> list[StreamEntry]:
    times = timestamps or (4, 5, 6, 7)
    return [
        StreamEntry("tank", 0, time, 0, offset, previous, encode_content("{}"))
        for time, (offset, previous) in zip(times, STORED.items(), strict=True)
    ]


def resent(options: dict[str, Any], messages: list[StreamEntry] | None = None, sub: Any = "a") -> list[Any]:
    """Return the parsed frames of a resend."""
    request = read_request(json.dumps({"type": "resend", "stream": "tank", "sub": sub, **options}).encode())
    assert isinstance(request, Resend)
    conversation = ResendFrames(request)
    frames = conversation.element_frames(chosen(messages or stored(), request.selection))
    return [json.loads(write_frame(frame)) for frame in (*frames, conversation.completed())]


PLACE = {"stream": "tank", "partition": 0, "sub": "a"}


@each_row(
    ("case", "options", "offsets"),
    [
        ("R01", {"resend_all": True}, [7, 10, 13, 16]),
        ("R02", {"resend_last": 2}, [13, 16]),
        ("R03", {"resend_last": 99}, [7, 10, 13, 16]),
        ("R04", {"resend_last": 0}, []),
        ("R05", {"resend_from": 10}, [10, 13, 16]),
        ("R06", {"resend_from": 11}, [13, 16]),
        ("R07", {"resend_from": 7, "resend_to": 13}, [7, 10, 13]),
        ("R08", {"resend_from": 10, "resend_to": 10}, [10]),
        ("R09", {"resend_from": 13, "resend_to": 7}, []),
        ("R10", {"resend_from": 17}, []),
        ("R11", {"resend_from_time": 5}, [10, 13, 16]),
        ("R13", {"resend_last": 1, "resend_from": 7}, [7, 10, 13, 16]),
    ],
)
def test_cases_r01_to_r13_a_resend_returns_the_messages_its_option_selects(
    case: str, options: dict[str, Any], offsets: list[int]
) -> None:
    frames = resent(options)
    if not offsets:
        assert frames == [[0, 6, "", PLACE]], case
        return
    assert frames[0] == [0, 4, "", PLACE]
    assert frames[-1] == [0, 5, "", PLACE]
    assert [(number, sub, message[5]) for _, number, sub, message in frames[1:-1]] == [
        (1, "a", offset) for offset in offsets
    ], case


def test_case_r12_a_time_finds_the_first_message_and_then_offsets_count() -> None:
    frames = resent({"resend_from_time": 5}, stored(4, 9, 3, 10))
    assert [frame[3][5] for frame in frames[1:-1]] == [10, 13, 16]


def test_case_r17_a_number_as_sub_stays_a_number() -> None:
    frames = resent({"resend_last": 1}, sub=0)
    assert [frame[2] for frame in frames] == ["", 0, ""]
    assert frames[0][3]["sub"] == frames[2][3]["sub"] == 0


def test_case_r19_a_message_names_its_true_predecessor() -> None:
    (_, unicast, _) = resent({"resend_from": 10, "resend_to": 10})
    assert unicast[3][5:7] == [10, 7]


def test_case_r20_two_resends_are_distinguished() -> None:
    first, second = (ResendFrames(Resend("tank", 0, sub, OffsetRange(0))) for sub in ("a", "b"))
    one, two, three, four = stored()
    frames = [
        *first.element_frames([one]),
        *second.element_frames([one, two]),
        *first.element_frames([two, three, four]),
        *second.element_frames([]),
    ]
    frames += [second.completed(), first.completed()]
    subs = {"a": [7, 10, 13, 16], "b": [7, 10]}
    for sub, offsets in subs.items():
        own = [frame for frame in frames if isinstance(frame, Unicast) and frame.sub == sub]
        assert [frame.message.offset for frame in own] == offsets
    assert [type(frame) for frame in frames[-2:]] == [Resent, Resent]
    assert sum(isinstance(frame, Resending) for frame in frames) == 2


def test_case_r22_a_failing_resend_ends_with_an_error_and_is_not_repeated() -> None:
    conversation = ResendFrames(Resend("tank", 0, "a", OffsetRange(0)))
    conversation.element_frames(stored()[:2])
    failed = conversation.failed(Fault(500, "internalerror", "the store is away"))
    text = "Failed to request resend from stream tank and partition 0: the store is away"
    assert failed == Error(text, 503, "streamr:resend.failed", ErrorSubject("tank", 0, "a"))
    assert json.loads(write_frame(failed))[3]["sub"] == "a"


def test_an_empty_resend_is_answered_with_no_resend() -> None:
    conversation = ResendFrames(Resend("tank", 0, "a", OffsetRange(0)))
    assert conversation.element_frames([]) == []
    assert conversation.completed() == NoResend("tank", 0, "a")


# --- how many, and when -------------------------------------------------------------------------------------------------


def gap(sub: str = "a", start: int = 8, end: int = 13) -> Resend:
    return Resend("tank", 0, sub, OffsetRange(start, end))


def test_four_run_and_others_wait_their_turn() -> None:
    clock = Clock()
    resends = Resends()
    tickets = [resends.ask(gap(str(number))) for number in range(6)]
    assert resends.begin(clock.now()) == tickets[:4]
    assert resends.begin(clock.now()) == []
    assert resends.finish(tickets[1], True, clock.now()) == clock.now()
    assert resends.begin(clock.now()) == [tickets[4]]
    resends.answered(tickets[1])
    resends.stop()
    assert resends.begin(clock.advance(9)) == []


def test_the_sixty_fifth_that_waits_is_refused() -> None:
    resends = Resends()
    for _ in range(4):
        resends.ask(gap())
    resends.begin(0)
    for _ in range(64):
        resends.ask(gap())
    with pytest.raises(RequestRejected, match="Limit exceeded: 64 waiting resends of a session") as refused:
        resends.ask(gap("x"))
    assert (refused.value.status, refused.value.about) == (429, ErrorSubject("tank", 0, "x"))


def test_answers_that_are_kept_back_are_treated_as_waiting() -> None:
    resends = Resends(ResendLimits(waiting=2))
    for _ in range(2):
        resends.ask(gap())
        (ticket,) = resends.begin(0)
        resends.finish(ticket, False, 0)
    with pytest.raises(RequestRejected):
        resends.ask(gap())
    resends.answered(ticket)
    resends.ask(gap())


def begun_in_turn(resends: Resends, clock: Clock) -> list[ResendTicket]:
    """Return those that begin now, or else within a second."""
    tickets = resends.begin(clock.now())
    if not tickets:
        clock.advance(1.0)
        tickets = resends.begin(clock.now())
    return tickets


def test_twenty_start_in_a_second_and_the_rest_later() -> None:
    clock = Clock()
    resends = Resends()
    begun: list[float] = []
    for number in range(50):
        ticket = resends.ask(gap(str(number)))
        assert begun_in_turn(resends, clock) == [ticket]
        resends.finish(ticket, True, clock.now())
        resends.answered(ticket)
        begun.append(clock.now())
    assert [begun.count(second) for second in (1000.0, 1001.0, 1002.0)] == [20, 20, 10]


def _ask(resends: Resends, clock: Clock, request: Resend, *, found: bool = False) -> float:
    """Ask, and wait for the answer as a client would: how long it was kept back."""
    resends.ask(request)
    (ticket,) = begun_in_turn(resends, clock)
    delay = resends.finish(ticket, found, clock.now()) - clock.now()
    clock.advance(delay)
    resends.answered(ticket)
    return delay


def test_case_r25_a_question_that_finds_nothing_is_answered_later_each_time() -> None:
    clock = Clock()
    resends = Resends()
    assert [_ask(resends, clock, gap()) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert _ask(resends, clock, gap(end=16)) == 0
    assert _ask(resends, clock, gap("b")) == 0


def test_a_question_with_results_or_after_a_long_time_is_a_new_one() -> None:
    clock = Clock()
    resends = Resends()
    assert [_ask(resends, clock, gap()) for _ in range(2)] == [0, 1]
    assert _ask(resends, clock, gap(), found=True) == 0
    assert [_ask(resends, clock, gap()) for _ in range(2)] == [0, 1]
    clock.advance(60)
    assert _ask(resends, clock, gap()) == 0


def test_a_client_that_requests_resends_in_a_loop_is_limited_to_a_few_a_minute() -> None:
    """Old clients ask again at once, and would do so thousands of times in a second."""
    clock = Clock()
    resends = Resends()
    asked = 0
    while clock.now() < 1060:
        _ask(resends, clock, gap())
        asked += 1
    assert asked < 10


def test_a_client_that_requests_another_gap_each_time_is_rate_limited() -> None:
    clock = Clock()
    resends = Resends()
    for number in range(2 * MAX_REMEMBERED):
        _ask(resends, clock, gap(start=number))
    assert clock.now() - 1000 >= 2 * MAX_REMEMBERED / 20 - 1


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ask", "begin", "finish", "wait"]), st.integers(0, 3)), max_size=60))
def test_every_accepted_resend_starts_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    resends = Resends(ResendLimits(per_second=3, running=2, waiting=4))
    asked: list[ResendTicket] = []
    begun: list[ResendTicket] = []
    running: list[ResendTicket] = []
    for step, number in steps:
        if step == "ask":
            try:
                asked.append(resends.ask(gap(str(number))))
            except RequestRejected:
                assert len(asked) - len(begun) <= 4
        elif step == "begin":
            now = resends.begin(clock.now())
            begun += now
            running += now
        elif step == "finish" and running:
            ticket = running.pop(number % len(running))
            assert resends.finish(ticket, bool(number % 2), clock.now()) >= clock.now()
            resends.answered(ticket)
        else:
            clock.advance(number)
        assert len(running) <= 2
    assert begun == asked[: len(begun)]
    while running or len(begun) < len(asked):
        if running:
            resends.finish(running.pop(), True, clock.now())
        clock.advance(1)
        now = resends.begin(clock.now())
        begun += now
        running += now
    assert begun == asked
