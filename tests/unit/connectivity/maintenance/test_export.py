"""Options of an export, and the exit codes of its errors."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from connectivity.errors import CommandFailed
from connectivity.maintenance.export import ExportRequest, _exit_code, selection
from spark_store import rql
from spark_store.errors import (
    LimitExceeded,
    OutputUnusable,
    QueryCancelled,
    QueryTimeout,
    StoreError,
    StoreUnavailable,
)
from spark_store.queries.selection import EventSelection
from tests.support.cpu_budget import at_most
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
TIME = "2030-01-15T12:00:00+00:00"


@each_row(
    ("wanted", "expected"),
    [
        (ExportRequest(), EventSelection()),
        (ExportRequest("acme.site:lamp-7"), EventSelection(entity="acme.site:lamp-7")),
        (ExportRequest(":lamp(7)", "policy"), EventSelection(entity=":lamp(7)", entity_type="policy")),
        (ExportRequest("room-7/0", "stream"), EventSelection(entity="room-7/0", entity_type="stream")),
        (ExportRequest("acme.site:hall(2)/room/0"), EventSelection(entity="acme.site:hall(2)/room/0")),
        (ExportRequest("exists(attributes/x)"), EventSelection(predicate=rql.parse("exists(attributes/x)"))),
        (
            ExportRequest("gt(_modified,time:now)", "thing"),
            EventSelection(entity_type="thing", predicate=rql.resolve_times(rql.parse("gt(_modified,time:now)"), NOW)),
        ),
        (ExportRequest(namespace="acme", begin="3", end="9"), EventSelection(namespace="acme", first=3, last=9)),
        (ExportRequest(begin=TIME, end="7"), EventSelection(since=NOW, last=7)),
        (
            ExportRequest(begin="2030-01-15T13:00:00+01:00", end="2030-01-15T12:00:00Z"),
            EventSelection(since=NOW, until=NOW),
        ),
        (
            ExportRequest(begin="0001-01-01T00:00:00-05:00", end="2030-01-15T12:00:30+00:00:30"),
            EventSelection(since=datetime(1, 1, 1, 5, tzinfo=UTC), until=NOW),
        ),
        # The first microsecond that is not before the time.
        (
            ExportRequest(begin="2030-01-15T11:59:59.9999990001Z", end="2030-01-15T12:00:00.00000000Z"),
            EventSelection(since=NOW, until=NOW),
        ),
        (ExportRequest(end="2030-01-15T13:59:59.9999991+02:00"), EventSelection(until=NOW)),
    ],
)
def test_options_become_a_selection(wanted: ExportRequest, expected: EventSelection) -> None:
    found = selection(wanted, NOW)
    assert found == expected
    assert {at.tzinfo for at in (found.since, found.until) if at is not None} <= {UTC}


@each_row(
    ("wanted", "message"),
    [
        (
            ExportRequest("lamp-7"),
            "expected the id of an entity, such as acme.site:lamp-7, or a filter, found 'lamp-7'",
        ),
        (ExportRequest(""), "expected the id of an entity, such as acme.site:lamp-7, or a filter, found nothing"),
        (ExportRequest(" ", "stream"), "or a filter, found nothing"),
        (
            ExportRequest("acme:" + "a" * 3000),
            "expected an id of at most 256 characters, or a filter, found 3005 characters: 'acme:aa",
        ),
        (ExportRequest("acme:" + "a" * 3000 + "(7)"), "found 3008 characters"),
        (
            ExportRequest("a" * 3000 + "(7)"),
            "expected the id of an entity, such as acme.site:lamp-7, or a filter, found an invalid filter\nInvalid filter",
        ),
        (ExportRequest("eq(attributes/x"), "position"),
        (ExportRequest("eq(nothing,1)"), "Unknown property name: nothing"),
        (ExportRequest(type="lamp"), "--type: expected one of thing, policy, stream, found lamp"),
        (ExportRequest("exists(attributes/x)", "policy"), "expected thing, because a filter"),
        (ExportRequest(begin="0"), "--from: expected a revision from 1 or a time"),
        (ExportRequest(end="-3"), "--to: expected a revision"),
        (ExportRequest(end="2030-01-15T12:00:00"), "with its zone"),
        (ExportRequest(begin="yesterday"), "found 'yesterday'"),
        (ExportRequest(begin="9" * 5000), "--from: expected a revision from 1 or a time"),
        (ExportRequest(end="9999-12-31T23:59:59-05:00"), "--to: expected a revision from 1 or a time"),
        (ExportRequest(begin="9", end="3"), "found 9 and 3"),
        (ExportRequest(begin="2030-01-15T12:00:01Z", end=TIME), "expected a start that is not after the end"),
    ],
)
def test_invalid_options_end_with_exit_code_2_and_a_reason(wanted: ExportRequest, message: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        selection(wanted, NOW)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 600
    assert refused.value.exit_code == 2


def test_white_space_in_front_of_a_filter_is_read_once() -> None:
    with at_most(1), pytest.raises(CommandFailed, match="or a filter"):
        selection(ExportRequest(f"{' ' * 100_000}x"), NOW)


@each_row(
    ("error", "code"),
    [
        (StoreUnavailable("full"), 1),
        (QueryTimeout("late"), 1),
        (OutputUnusable("there"), 2),
        (LimitExceeded("many"), 2),
        (QueryCancelled("stopped"), 130),
    ],
)
def test_every_error_has_its_exit_code(error: StoreError, code: int) -> None:
    assert _exit_code(error) == code
