"""The connection's state table and the length of pauses."""

from __future__ import annotations

import pytest

from connectivity.connections.lifecycle import (
    TABLE,
    ConnectionState,
    Lifecycle,
    LifecycleEvent,
    Status,
    back_off,
    overall,
)
from connectivity.errors import ConnectionRefused, Detail, NotConnected
from tests.support.table import each_row

GONE = NotConnected(Detail.TIMEOUT, "no answer")
DENIED = ConnectionRefused(Detail.BAD_CREDENTIALS, "not authorised")


def after(*inputs: LifecycleEvent) -> Lifecycle:
    lifecycle = Lifecycle()
    for happened in inputs:
        lifecycle.step(happened, GONE if happened is LifecycleEvent.LOST else None)
    return lifecycle


def test_a_lost_connection_waits_and_connects_again() -> None:
    lifecycle = after(LifecycleEvent.OPEN, LifecycleEvent.CONNECTED, LifecycleEvent.LOST)
    assert (lifecycle.state, lifecycle.status, lifecycle.tries) == (ConnectionState.WAITING, Status.FAILED, 1)
    lifecycle.step(LifecycleEvent.RETRY_DUE)
    assert lifecycle.state is ConnectionState.CONNECTING


def test_connecting_again_forgets_the_error() -> None:
    lifecycle = after(LifecycleEvent.OPEN, LifecycleEvent.LOST, LifecycleEvent.RETRY_DUE, LifecycleEvent.CONNECTED)
    assert (lifecycle.status, lifecycle.error) == (Status.OPEN, None)


def test_a_link_that_breaks_after_connecting_keeps_its_number_of_tries() -> None:
    lifecycle = after(
        LifecycleEvent.OPEN,
        LifecycleEvent.CONNECTED,
        LifecycleEvent.LOST,
        LifecycleEvent.RETRY_DUE,
        LifecycleEvent.CONNECTED,
        LifecycleEvent.LOST,
    )
    assert lifecycle.tries == 2


def test_a_long_lived_link_resets_the_count_of_attempts() -> None:
    lifecycle = after(
        LifecycleEvent.OPEN,
        LifecycleEvent.LOST,
        LifecycleEvent.RETRY_DUE,
        LifecycleEvent.LOST,
        LifecycleEvent.RETRY_DUE,
        LifecycleEvent.CONNECTED,
    )
    lifecycle.step(LifecycleEvent.LOST, GONE, was_steady=True)
    assert lifecycle.tries == 1


def test_a_refusal_is_shown_as_misconfigured() -> None:
    lifecycle = after(LifecycleEvent.OPEN)
    lifecycle.step(LifecycleEvent.LOST, DENIED)
    assert lifecycle.status is Status.MISCONFIGURED


@pytest.mark.parametrize("state", list(ConnectionState))
def test_every_state_can_be_closed(state: ConnectionState) -> None:
    assert LifecycleEvent.CLOSE in TABLE[state]


@each_row(
    ("state", "happened"),
    [(s, i) for s in ConnectionState for i in LifecycleEvent if i not in TABLE[s]],
    ids=lambda value: value.value,
)
def test_an_empty_cell_of_the_table_raises(state: ConnectionState, happened: LifecycleEvent) -> None:
    lifecycle = Lifecycle()
    lifecycle.state = state
    with pytest.raises(ValueError, match=f"{happened.value} in state {state.value}"):
        lifecycle.step(happened)


def test_pauses_double_up_to_the_longest() -> None:
    pauses = [back_off(tries, GONE, shortest=0.5, longest=30, jitter=0) for tries in range(1, 9)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_jitter_shortens_a_pause_by_up_to_half() -> None:
    assert back_off(3, GONE, shortest=0.5, longest=30, jitter=1.0) == 1.0


def test_a_refusal_is_tried_again_with_the_longest_pause() -> None:
    assert back_off(1, DENIED, shortest=0.5, longest=30, jitter=0) == 30


def test_the_length_of_a_pause_survives_any_number_of_tries() -> None:
    assert back_off(10_000, GONE, shortest=0.5, longest=30, jitter=0) == 30


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("open", "open"),
        ("open open", "open"),
        ("open failed misconfigured", "failed"),
        ("open misconfigured unknown", "misconfigured"),
        ("open unknown", "unknown"),
        ("closed closed", "closed"),
        ("open closed", "open"),
    ],
)
def test_7_3_a_connection_is_open_when_all_its_clients_are_and_else_like_the_worst(
    statuses: str, expected: str
) -> None:
    assert overall([Status(status) for status in statuses.split()]) is Status(expected)
