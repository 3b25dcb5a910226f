"""Following the log of a connection: only new lines, in order, through restarts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from connectivity.cli.connections import RESTART_GRACE_SECONDS, PrintedEntries, follow_log
from connectivity.cli.http_client import NotAllowed, ServiceClient, ServiceRefused, parse_service_address
from tests.support.api.canned_server import HTML, Canned, Reply, canned, fault
from tests.support.clock import Clock
from tests.support.table import each_row

LOGS = "GET /api/2/connections/depot/logs"


def entry(number: int, second: int = 0) -> dict[str, Any]:
    return {"timestamp": f"2026-02-03T10:00:{second:02}Z", "level": "success", "message": f"m{number}"}


def logs(*numbers: int) -> dict[str, Any]:
    return {"connectionId": "depot", "connectionLogs": [entry(number) for number in numbers]}


ANSWERS: dict[str, tuple[list[Any], list[list[int]]]] = {
    "nothing new": ([logs(1, 2), logs(1, 2)], [[1, 2], []]),
    "more at the end": ([logs(1), logs(1, 2, 3)], [[1], [2, 3]]),
    "old ones pushed out": ([logs(1, 2), logs(2, 3)], [[1, 2], [3]]),
    "another client's in between": ([logs(1, 3), logs(1, 2, 3)], [[1, 3], [2]]),
    "twice the same": ([logs(1), logs(1, 1, 1)], [[1], [1, 1]]),
    "cut short by a long one, and whole again": ([logs(1, 2), logs(2, 9), logs(1, 2, 9)], [[1, 2], [9], []]),
    "twice the same, one of them hidden for a while": ([logs(1, 1), logs(1), logs(1, 1)], [[1, 1], [], []]),
    "emptied, and new ones": ([logs(1), logs(), logs(2)], [[1], [], [2]]),
    "no logs at all": ([None, {}, {"connectionLogs": 7}, [1], logs(1)], [[], [], [], [], [1]]),
}


@each_row(("answers", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_an_entry_is_new_once(answers: list[Any], expected: list[list[int]]) -> None:
    seen = PrintedEntries()
    found = [[int(new["message"][1:]) for new in seen.new(answer)] for answer in answers]
    assert found == expected


def test_the_number_of_remembered_log_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectivity.cli.connections._MAX_REMEMBERED_ENTRIES", 2)
    seen = PrintedEntries()
    assert len(seen.new(logs(1, 2, 3))) == 3
    assert [new["message"] for new in seen.new(logs(2, 3))] == []
    assert [new["message"] for new in seen.new(logs(1))] == ["m1"], "forgotten"


def following(server: Canned, notices: list[str], clock: Clock) -> Iterator[str]:
    def sleep(seconds: float) -> None:
        clock.advance(seconds)

    service = ServiceClient(parse_service_address(server.url), seconds=30.0)
    for found in follow_log(service, "depot", 1.0, notices.append, sleep, clock.now):
        yield found["message"]


def test_a_service_that_restarts_is_waited_for(clock: Clock) -> None:
    gone = fault(404, "connectivity:connection.notfound", "not yet")
    starting = fault(503, "api:store.unavailable", "soon")
    answers: list[Reply] = [
        Reply(logs(1)),
        Reply(raw=b""),
        Reply(raw=b""),
        HTML,
        starting,
        gone,
        Reply(logs(2)),
        Reply(logs(2, 3)),
    ]
    notices: list[str] = []
    with canned({LOGS: answers}) as server:
        assert list(islice(following(server, notices, clock), 3)) == ["m1", "m2", "m3"]
        assert len(server.requests) == len(answers)
    away, back = notices
    assert "waiting" in away
    assert "available again" in back


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([fault(404, "connectivity:connection.notfound", "no")], ServiceRefused),
        ([Reply(logs(1)), fault(404, "connectivity:connection.notfound", "no")], ServiceRefused),
        ([Reply(logs(1)), fault(401, "api:unauthorized", "no")], NotAllowed),
    ],
)
def test_a_permanent_error_ends_the_log_output(answers: list[Any], kind: type[Exception], clock: Clock) -> None:
    with canned({LOGS: answers}) as server, pytest.raises(kind):
        list(following(server, [], clock))


def test_a_connection_that_does_not_come_back_with_its_service_is_gone(clock: Clock) -> None:
    started = clock.now()
    gone = fault(404, "connectivity:connection.notfound", "no")
    with canned({LOGS: [Reply(raw=b""), gone]}) as server, pytest.raises(ServiceRefused):
        list(following(server, [], clock))
    assert clock.now() >= started + RESTART_GRACE_SECONDS
