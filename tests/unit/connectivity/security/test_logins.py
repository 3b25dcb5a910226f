"""Delays after wrong tokens."""

from __future__ import annotations

from structlog.testing import capture_logs

from connectivity.security.logins import FailedLoginDelays
from tests.support.clock import Clock


def test_each_wrong_token_of_an_address_waits_longer_up_to_a_bound() -> None:
    clock = Clock()
    delays = FailedLoginDelays(clock.now, most_delayed=8)
    waits = []
    for _ in range(9):
        waits.append(delays.record_failure("10.0.0.1"))
        delays.record_answer("10.0.0.1")
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0, 4.0]
    assert delays.record_failure("10.0.0.2") == 0.1, "another address has nothing to do with it"
    delays.record_answer("10.0.0.2")
    clock.advance(301)
    assert delays.record_failure("10.0.0.1") == 0.1, "it is forgotten"


def test_the_table_of_addresses_is_bounded() -> None:
    delays = FailedLoginDelays(lambda: 0.0, most_delayed=8)
    for number in range(10_000):
        delays.record_failure(str(number))
        delays.record_answer(str(number))
    assert delays.record_failure("0") == 0.1, "the oldest ones are forgotten first"
    assert delays.record_failure("9999") == 0.2


def test_wrong_tokens_are_reported_in_the_log_and_do_not_fill_it() -> None:
    delays = FailedLoginDelays(lambda: 0.0, most_delayed=8)
    with capture_logs() as lines:
        for _ in range(1000):
            delays.record_failure("203.0.113.9")
            delays.record_answer("203.0.113.9")
    assert [(it["event"], it["address"], it["times"]) for it in lines] == [
        ("invalid token received", "203.0.113.9", 1 << number) for number in range(10)
    ]


def test_many_addresses_that_guess_concurrently_wait_too() -> None:
    delays = FailedLoginDelays(lambda: 0.0, most_delayed=8)
    assert {delays.record_failure(f"10.0.{number // 250}.{number % 250}") for number in range(1000)} == {0.1}


def test_an_address_is_full_while_its_most_delayed_responses_wait() -> None:
    delays = FailedLoginDelays(lambda: 0.0, most_delayed=2)
    delays.record_failure("10.0.0.1")
    assert not delays.is_full("10.0.0.1")
    delays.record_failure("10.0.0.1")
    assert (delays.is_full("10.0.0.1"), delays.is_full("10.0.0.2")) == (True, False)
    delays.record_answer("10.0.0.1")
    assert not delays.is_full("10.0.0.1")
