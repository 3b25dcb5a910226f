"""The kill series' checker finds every kind of fault: losses, repeats, order, stalls, false replays."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.kill_series.checker import Entry, Fault, Finding, figures, findings
from tests.support.kill_series.load import APART
from tests.support.kill_series.log import Item, Log, PastRetrieve, Replay

HISTORY = [Entry(1, "/", {}), Entry(2, "/attributes/n", 0), Entry(3, "/attributes/n", 5)]
SENT, ANSWERED = {0: "device-0", 5: "device-0"}, {0: {2}, 5: {3}}


def found_in(history: list[Entry], state: object = 5, log: Log | None = None) -> list[str]:
    return [it.text for it in all_found(history, state, log)]


def all_found(history: list[Entry], state: object = 5, log: Log | None = None) -> list[Finding]:
    return findings(log or Log(dict(SENT), dict(ANSWERED)), {"device-0": history}, {"device-0": state}, longest=30)


def replayed(*items: tuple[int, str], start: int = 1, known: int = 3, demanded: int = 10, end: str = "complete") -> Log:
    """Return a log with one replay of HISTORY: revisions and digests. An empty `end` means no end."""
    values = {entry.revision: entry.value for entry in HISTORY}
    got = [Item(revision, values.get(revision), digest) for revision, digest in items]
    ends = [(len(got), end)] if end else []
    return Log(dict(SENT), dict(ANSWERED), {}, {"load/1": Replay("device-0", start, known, demanded, got, ends)})


def test_the_checker_accepts_a_whole_history() -> None:
    assert found_in(HISTORY) == []


@pytest.mark.parametrize(
    ("history", "state", "expected"),
    [
        pytest.param(HISTORY[:2], 0, "5 was answered and is lost", id="loss at the end"),
        pytest.param([HISTORY[0], HISTORY[2]], 5, "gap or disorder in the revisions around 3", id="gap"),
        pytest.param([*HISTORY, Entry(4, "/attributes/n", 5)], 5, "5 was written 2 times", id="repeat"),
        pytest.param(HISTORY, 0, "the state says 0, its history ends with 5", id="state is not the fold"),
        pytest.param([*HISTORY[:2], Entry(3, "/x", 1), Entry(4, "/attributes/n", 5)], 5, "stands at 4", id="moved"),
    ],
)
def test_the_checker_catches_a_planted_fault(history: list[Entry], state: object, expected: str) -> None:
    assert any(expected in finding for finding in found_in(history, state))


def test_the_checker_catches_a_command_that_was_sent_and_never_carried_out() -> None:
    log = Log({**SENT, 10: "device-0"}, dict(ANSWERED))
    assert found_in(HISTORY, 5, log) == ["device-0: 10 was sent and is lost", "10 was never answered"]


def test_the_checker_catches_two_different_answers_to_one_command() -> None:
    log = Log(dict(SENT), {0: {2}, 5: {3, 4}})
    assert found_in(HISTORY, 5, log) == [
        "5 was answered in two ways, as [3, 4]",
        "device-0: 5 was answered as 4 and stands at 3",
    ]


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(replayed((1, "a"), (2, "b"), (3, "c")), id="whole"),
        pytest.param(replayed((1, "a"), (2, "b"), (1, "a"), (2, "b"), (3, "c")), id="sent again, byte for byte"),
        pytest.param(replayed((1, "a"), end="streaming.subscription.not.found"), id="ended with a failure"),
    ],
)
def test_the_checker_accepts_a_replay(log: Log) -> None:
    assert found_in(HISTORY, 5, log) == []


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(replayed((1, "a"), (3, "c")), "3 came after 1", id="gap"),
        pytest.param(replayed((2, "b"), (1, "a"), (3, "c")), "2 came after 0", id="order"),
        pytest.param(replayed((1, "a"), (2, "b"), (2, "x"), (3, "c")), "2 came again and was another", id="repeat"),
        pytest.param(replayed((1, "a"), (2, "b")), "complete at 2, when 3 had been answered", id="loss at the end"),
        pytest.param(replayed((1, "a"), (2, "b"), (3, "c"), demanded=2), "2 were asked for", id="too many"),
        pytest.param(replayed((1, "a"), end=""), "has not ended", id="no terminal signal"),
    ],
)
def test_the_checker_catches_a_fault_in_a_replay(log: Log, expected: str) -> None:
    assert any(expected in finding for finding in found_in(HISTORY, 5, log))


def test_the_checker_catches_an_event_after_the_end() -> None:
    log = replayed((1, "a"), (2, "b"), (3, "c"))
    log.replays["load/1"].ends = [(2, "streaming.subscription.not.found")]
    assert found_in(HISTORY, 5, log) == ["replay load/1: 3 came after the end"]


def test_the_checker_catches_an_event_that_the_history_reports_otherwise() -> None:
    log = replayed((1, "a"), (2, "b"), (3, "c"))
    log.replays["load/1"].items[1] = Item(2, 7, "b")
    assert found_in(HISTORY, 5, log) == ["replay load/1: 2 has the value 7, the history has 0"]


def test_the_checker_counts_each_finding_as_a_loss_a_repeat_or_another_order() -> None:
    log = Log({**SENT, 10: "device-0", 15: "device-0"}, {**ANSWERED, 10: {5}, 15: {4}})
    history = [*HISTORY, Entry(4, "/attributes/n", 15), Entry(5, "/attributes/n", 10), Entry(6, "/attributes/n", 15)]
    found = all_found(history[:4], 15, log) + all_found(history, 15, log)
    assert {it.fault for it in found} == {Fault.LOST, Fault.DOUBLED, Fault.REORDERED}
    assert "1 lost; 1 doubled; 1 reordered; 0 stalled; 0 wrong" in figures(log, found)


def test_the_checker_catches_another_order_of_one_sender() -> None:
    log = Log({**SENT, 10: "device-0"}, {0: {2}, 10: {3}, 5: {4}})
    history = [*HISTORY[:2], Entry(3, "/attributes/n", 10), Entry(4, "/attributes/n", 5)]
    assert found_in(history, 5, log) == ["device-0: 5 was written after 10"]


def test_the_checker_accepts_any_order_of_two_senders() -> None:
    later = APART + 5
    log = Log({0: "device-0", later: "device-0", 5: "device-0"}, {0: {2}, later: {3}, 5: {4}})
    assert found_in([*HISTORY[:2], Entry(3, "/attributes/n", later), Entry(4, "/attributes/n", 5)], 5, log) == []


def test_the_checker_accepts_any_order_where_the_broker_forgets() -> None:
    log = Log({**SENT, 10: "device-0"}, {0: {2}, 10: {3}, 5: {4}}, is_ordered=False)
    assert found_in([*HISTORY[:2], Entry(3, "/attributes/n", 10), Entry(4, "/attributes/n", 5)], 5, log) == []


@pytest.mark.parametrize(
    ("again", "expected"), [(1, []), (0, ["5 was answered in two ways, as [3, 4]", "device-0: 5 was written 2 times"])]
)
def test_a_command_is_carried_out_once_each_time_that_it_is_sent_as_a_new_one(again: int, expected: list[str]) -> None:
    log = Log(dict(SENT), {0: {2}, 5: {3, 4}}, again=Counter({5: again}))
    assert found_in([*HISTORY, Entry(4, "/attributes/n", 5)], 5, log) == expected


@pytest.mark.parametrize(
    ("answered_at", "expected"), [(39.0, []), (41.0, ["5 was answered after 31.0 s, expected 30 s at most"])]
)
def test_the_checker_catches_a_stall(answered_at: float, expected: list[str]) -> None:
    log = Log(dict(SENT), dict(ANSWERED), sent_at={0: 9.0, 5: 10.0}, answered_at={0: 10.0, 5: answered_at})
    assert found_in(HISTORY, 5, log) == expected
    assert f"longest wait {answered_at - 10:.1f} s" in figures(log, [])


def test_the_checker_catches_a_command_that_was_carried_out_and_never_answered() -> None:
    assert found_in(HISTORY, 5, Log(dict(SENT), {0: {2}})) == ["5 was never answered"]


def test_a_command_that_met_a_fault_may_be_missing_or_late() -> None:
    log = Log({**SENT, 10: "device-0", 15: "device-0"}, {0: {2}, 10: {3}}, {5: 500, 15: 503}, tolerated={500, 503})
    history = [*HISTORY[:2], Entry(3, "/attributes/n", 10), Entry(4, "/attributes/n", 5)]
    assert found_in(history, 5, log) == []
    assert found_in([*history, Entry(5, "/attributes/n", 5)], 5, log) == ["device-0: 5 was written 2 times"]
    log.refused, log.faulted = {}, {5}
    log.answered |= {5: {4}, 15: {5}}
    assert found_in([*history, Entry(5, "/attributes/n", 15)], 15, log) == []
    log.answered, log.refused, log.tolerated = {0: {2}, 10: {3}}, {5: 500, 15: 503}, {503}
    assert found_in(history, 5, log) == ["5 was refused with 500"]


TIMED = [
    Entry(1, "/", {}, "2030-01-15T07:30:00.000001Z"),
    Entry(2, "/attributes/n", 0, "2030-01-15T07:30:01.000001Z"),
    Entry(3, "/attributes/n", 5, "2030-01-15T07:30:02.000001Z"),
]


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("at-historical-revision", "2", 0),
        ("at-historical-revision", "3", 5),
        ("at-historical-timestamp", "2030-01-15T07:30:02.000001Z", 0),
        ("at-historical-timestamp", "2030-01-15T07:30:02.000002Z", 5),
    ],
)
def test_the_checker_compares_a_retrieve_of_the_past_with_the_history(header: str, value: str, expected: int) -> None:
    asked = PastRetrieve("device-0", header, value, 0.0, [(200, expected)], 1.0)
    log = Log(dict(SENT), dict(ANSWERED), past={"load/1": asked})
    assert found_in(TIMED, 5, log) == []
    asked.answers.append((200, 7))
    (text,) = found_in(TIMED, 5, log)
    assert text == f"retrieve load/1 of device-0 at {value}: 200 7, the history has {expected}"


def test_the_checker_catches_a_retrieve_of_the_past_that_is_not_answered() -> None:
    asked = PastRetrieve("device-0", "at-historical-revision", "2", 0.0)
    log = Log(dict(SENT), dict(ANSWERED), past={"load/1": asked})
    assert found_in(TIMED, 5, log) == ["retrieve load/1 of the past was never answered"]
