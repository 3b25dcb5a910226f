"""The log of a connection, with a clock that tests set."""

from __future__ import annotations

import pytest

from connectivity.monitoring.connection_log import MOST_BYTES, ConnectionLog, EntryKind
from mappings.ids import EntityId, EntityType
from tests.support.clock import Clock

CONSUMED = EntryKind("source", "consumed", "in", True)
FAILED = EntryKind("source", "mapped", "in", False)
LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
NOON = 1_767_355_200.0
"""2026-01-02T12:00:00Z."""


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def log(clock: Clock) -> ConnectionLog:
    log = ConnectionLog(clock.now)
    log.enable()
    return log


def write(log: ConnectionLog, kind: EntryKind, *numbers: int, words: str = "it happened") -> None:
    for number in numbers:
        ring, beside = log.ring(kind, words)
        ring.append((log.now(), f"c-{number}", LAMP, beside))


def correlations(log: ConnectionLog) -> list[str]:
    return [entry["correlationId"] for entry in log.read()["connectionLogs"]]


def test_an_entry_with_a_long_correlation_id_replaces_no_others(log: ConnectionLog) -> None:
    write(log, CONSUMED, 1)
    log.ring(CONSUMED, "it happened")[0].append((log.now(), "x" * 1_000_000, LAMP, None))
    assert correlations(log) == ["c-1", "x" * 200 + "…"]


def test_an_entry_has_its_message_entity_and_address(log: ConnectionLog) -> None:
    write(log, CONSUMED, 1, words="Message was consumed.")
    log.write(EntryKind("connection", "other", None, False), "Connection failed.")
    assert log.read() == {
        "connectionLogs": [
            {
                "correlationId": "c-1",
                "timestamp": "2026-01-02T12:00:00Z",
                "category": "source",
                "type": "consumed",
                "level": "success",
                "message": "Message was consumed.",
                "address": "in",
                "entityType": "thing",
                "entityId": "acme.site:lamp-7",
            },
            {
                "correlationId": "<not-provided>",
                "timestamp": "2026-01-02T12:00:00Z",
                "category": "connection",
                "type": "other",
                "level": "failure",
                "message": "Connection failed.",
            },
        ],
        "enabledSince": "2026-01-02T12:00:00Z",
        "enabledUntil": "2026-01-02T13:00:00Z",
    }


def test_the_last_ten_entries_of_each_kind_are_returned_oldest_first(log: ConnectionLog, clock: Clock) -> None:
    for number in range(25):
        clock.advance(1)
        write(log, CONSUMED, number)
    clock.advance(1)
    write(log, FAILED, 99)
    assert correlations(log) == [f"c-{number}" for number in (*range(15, 25), 99)]


def test_entries_of_all_kinds_are_in_chronological_order(log: ConnectionLog, clock: Clock) -> None:
    for number, kind in enumerate((FAILED, CONSUMED, FAILED, CONSUMED)):
        clock.advance(1)
        write(log, kind, number)
    assert correlations(log) == ["c-0", "c-1", "c-2", "c-3"]


def test_a_large_log_leaves_out_the_oldest_entries(log: ConnectionLog, clock: Clock) -> None:
    for number in range(10):
        clock.advance(1)
        write(log, CONSUMED, number, words="x" * (MOST_BYTES // 4))
    assert correlations(log) == ["c-7", "c-8", "c-9"]


def test_a_log_that_is_off_has_no_entries_and_no_times(clock: Clock) -> None:
    log = ConnectionLog(clock.now)
    log.write(CONSUMED, "not visible")
    assert log.read() == {"connectionLogs": []}


def test_an_hour_without_activity_switches_a_log_off_and_empties_it(log: ConnectionLog, clock: Clock) -> None:
    write(log, CONSUMED, 1)
    clock.advance(3_599)
    log.expire()
    assert log.is_on
    clock.advance(1)
    log.expire()
    assert not log.is_on
    log.enable()
    assert log.read()["connectionLogs"] == []


@pytest.mark.parametrize("what", ["read", "written", "enabled"])
def test_every_activity_keeps_a_log_on_for_another_hour(log: ConnectionLog, clock: Clock, what: str) -> None:
    clock.advance(3_000)
    if what == "read":
        log.read()
    elif what == "written":
        write(log, CONSUMED, 1)
    else:
        log.enable()
    clock.advance(3_000)
    found = log.read()
    assert (found["enabledSince"], found["enabledUntil"]) == ("2026-01-02T12:00:00Z", "2026-01-02T14:40:00Z")


def test_a_log_that_was_not_expired_in_time_is_empty_after_its_end(log: ConnectionLog, clock: Clock) -> None:
    write(log, CONSUMED, 1)
    clock.advance(3_600)
    assert log.read() == {"connectionLogs": []}


def test_after_a_reset_the_same_rings_fill_again(log: ConnectionLog) -> None:
    ring, _ = log.ring(CONSUMED, "it happened")
    write(log, CONSUMED, 1)
    log.reset()
    assert correlations(log) == []
    assert log.is_on
    ring.append((log.now(), "c-2", None, "again"))
    assert correlations(log) == ["c-2"]
