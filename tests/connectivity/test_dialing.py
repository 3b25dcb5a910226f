"""Reaching a broker: what blocks leaves the loop alone, and every failure has its name."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from connectivity.dialing import RefusedAddress, check_peer, dial_error, in_thread, lost_error
from connectivity.errors import ConnectionRefused, Detail, NotConnected
from tests.helpers import wait_until


async def test_work_in_a_thread_hands_over_what_it_made() -> None:
    assert await in_thread("test", lambda: threading.current_thread().name, lambda _: None) == "test"


async def test_work_in_a_thread_raises_what_it_raised() -> None:
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_thread("test", work, lambda _: None)


async def test_what_nobody_waits_for_any_more_is_undone() -> None:
    gate, undone = threading.Event(), []

    def work() -> str:
        gate.wait(5)
        return "made"

    task = asyncio.create_task(in_thread("test", work, undone.append))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    gate.set()
    await wait_until(lambda: undone)
    assert undone == ["made"]


def test_an_address_that_connections_may_not_reach_is_refused_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may lead there, so what counts is where the socket has arrived."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        fine = socket.create_connection(server.getsockname())
        check_peer(fine)
        monkeypatch.setattr("connectivity.dialing.is_refused_address", lambda address: address == "127.0.0.1")
        with pytest.raises(RefusedAddress, match=r"127\.0\.0\.1"):
            check_peer(fine)
        assert fine.fileno() == -1


@pytest.mark.parametrize(
    ("error", "kind", "detail"),
    [
        (RefusedAddress("no"), ConnectionRefused, Detail.NOT_AUTHORIZED),
        (socket.gaierror(-2, "Name or service not known"), NotConnected, Detail.UNKNOWN_HOST),
        (UnicodeError("label too long"), NotConnected, Detail.UNKNOWN_HOST),
        (TimeoutError(), NotConnected, Detail.TIMEOUT),
        (ConnectionRefusedError(111, "Connection refused"), NotConnected, Detail.REFUSED),
    ],
    ids=lambda value: getattr(value, "name", None) or type(value).__name__,
)
def test_a_failure_on_the_way_has_its_name(error: Exception, kind: type, detail: Detail) -> None:
    found = dial_error(error)
    assert (type(found), found.detail) == (kind, detail)


def test_an_error_that_has_its_name_keeps_it() -> None:
    named = NotConnected(Detail.TIMEOUT, "named")
    assert dial_error(named) is named


def test_a_broken_link_is_told_in_the_words_of_the_system() -> None:
    assert lost_error(ConnectionResetError(104, "Connection reset by peer")).words == (
        "the link broke: Connection reset by peer"
    )
