"""Connecting to a broker does not block the event loop, and every failure has its error."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from connectivity.errors import ConnectionRefused, Detail, NotConnected
from connectivity.security.egress import EgressRules, enforce
from connectivity.transports.dialer import (
    ForbiddenAddress,
    check_connected_address,
    dial_error,
    lost_error,
    reach,
    run_in_thread,
)
from tests.support.clock import Clock
from tests.support.wait import wait_until

BLOCKED = EgressRules(blocked=["127.0.0.0/8"])


async def test_work_in_a_thread_returns_its_result() -> None:
    assert await run_in_thread("test", lambda: threading.current_thread().name, lambda _: None) == "test"


async def test_work_in_a_thread_raises_its_error() -> None:
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_in_thread("test", work, lambda _: None)


async def test_the_result_of_a_canceled_call_is_undone() -> None:
    gate = threading.Event()
    undone: list[object] = []

    def work() -> str:
        gate.wait(5)
        return "made"

    task = asyncio.create_task(run_in_thread("test", work, undone.append))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    gate.set()
    await wait_until(lambda: undone)
    assert undone == ["made"]


@pytest.mark.parametrize(
    ("work", "result"), [(lambda: "made", "made"), (lambda: int("no"), None)], ids=["result", "error"]
)
async def test_a_call_canceled_between_its_end_and_the_next_step_is_undone(
    work: Callable[[], object], result: object
) -> None:
    undone: list[object] = []
    task = asyncio.create_task(run_in_thread("canceled late", work, undone.append))
    await asyncio.sleep(0)
    for thread in threading.enumerate():
        if thread.name == "canceled late":
            thread.join(5)
    # The event loop processes the end of the thread, then the cancellation, and only then continues the task.
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.wait([task])
    assert task.cancelled()
    assert undone == [result]


def test_an_address_that_connections_may_not_reach_is_refused_and_closed() -> None:
    """A name may lead there, so what counts is where the socket has arrived."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        fine = socket.create_connection(server.getsockname())
        check_connected_address(fine, "localhost")
        with (
            enforce(BLOCKED),
            pytest.raises(ForbiddenAddress, match=r"localhost resolves to 127\.0\.0\.1: found a host that matches 127"),
        ):
            check_connected_address(fine, "localhost")
        assert fine.fileno() == -1


def leading_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Resolve names to these addresses, one list per query; return the addresses of opened sockets."""
    asked, reached = iter(answers), []

    def look_up(host: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(asked)]

    def connect(place: tuple[str, int], **_: object) -> socket.socket:
        reached.append(place[0])
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("connectivity.transports.dialer.socket.getaddrinfo", look_up)
    monkeypatch.setattr("connectivity.transports.dialer.socket.create_connection", connect)
    return reached


@pytest.mark.parametrize("answer", [["169.254.169.254"], ["8.8.8.8", "169.254.169.254"], ["10.0.0.1", "fe80::1%3"]])
def test_no_socket_is_opened_for_a_name_that_leads_to_a_refused_address_too(
    answer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = leading_to(monkeypatch, answer)
    with pytest.raises(
        ForbiddenAddress, match=r"broker\.example resolves to .*: found a link-local address, expected a host"
    ):
        reach("broker.example", 1883, 1)
    assert reached == []


def test_the_checked_address_is_the_one_that_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers otherwise the second time is not asked a second time."""
    reached = leading_to(monkeypatch, ["10.0.0.1", "10.0.0.2"], ["169.254.169.254"])
    with pytest.raises(ConnectionRefusedError):
        reach("broker.example", 1883, 1)
    assert reached == ["10.0.0.1", "10.0.0.2"]


def test_all_addresses_of_a_name_together_have_the_time_to_connect(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """A name server can return thousands of addresses that do not answer."""
    timeouts: list[float] = []

    def connect(_place: tuple[str, int], timeout: float) -> socket.socket:
        timeouts.append(timeout)
        clock.advance(3)
        raise TimeoutError

    leading_to(monkeypatch, [f"10.0.0.{number}" for number in range(9)])
    monkeypatch.setattr("connectivity.transports.dialer.socket.create_connection", connect)
    monkeypatch.setattr("connectivity.transports.dialer.monotonic", clock.now)
    with pytest.raises(TimeoutError):
        reach("broker.example", 1883, 10)
    assert timeouts == [10, 7, 4, 1]


def test_the_next_address_is_tried_and_a_checked_socket_is_returned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, reach("localhost", server.getsockname()[1], 5) as made:
        assert made.getpeername() == server.getsockname()
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("error", "kind", "detail"),
    [
        (ForbiddenAddress("no"), ConnectionRefused, Detail.NOT_AUTHORIZED),
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


def test_a_broken_link_is_reported_with_the_error_text_of_the_system() -> None:
    assert lost_error(ConnectionResetError(104, "Connection reset by peer")).text == (
        "the link was lost: Connection reset by peer"
    )
