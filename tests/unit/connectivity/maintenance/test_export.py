"""What the words of an export mean, and what its errors end a command with."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from connectivity.maintenance.export import ExportFailed, Wanted, _exit_code, selection
from spark_store import rql
from spark_store.errors import (
    NoPipeline,
    NoWideQueries,
    OutputUnusable,
    PipelineLost,
    QueryCancelled,
    ResultTooLarge,
    StoreError,
    StoreUnavailable,
    TimeIsUp,
    TooManyRows,
)
from spark_store.queries.selection import Selection
from tests.support.table import each_row

NOW = datetime(2030, 1, 15, 12, tzinfo=UTC)
TIME = "2030-01-15T12:00:00+00:00"


@each_row(
    ("wanted", "expected"),
    [
        (Wanted(), Selection()),
        (Wanted("acme.site:lamp-7"), Selection(entity="acme.site:lamp-7")),
        (Wanted(":lamp(7)", "policy"), Selection(entity=":lamp(7)", entity_type="policy")),
        (Wanted("room-7/0", "stream"), Selection(entity="room-7/0", entity_type="stream")),
        (Wanted("exists(attributes/x)"), Selection(predicate=rql.parse("exists(attributes/x)"))),
        (
            Wanted("gt(_modified,time:now)", "thing"),
            Selection(entity_type="thing", predicate=rql.resolve_times(rql.parse("gt(_modified,time:now)"), NOW)),
        ),
        (Wanted(namespace="acme", begin="3", end="9"), Selection(namespace="acme", first=3, last=9)),
        (Wanted(begin=TIME, end="7"), Selection(since=NOW, last=7)),
        (Wanted(begin="2030-01-15T13:00:00+01:00", end="2030-01-15T12:00:00Z"), Selection(since=NOW, until=NOW)),
    ],
)
def test_words_become_a_selection(wanted: Wanted, expected: Selection) -> None:
    assert selection(wanted, NOW) == expected


@each_row(
    ("wanted", "said"),
    [
        (Wanted("lamp-7"), "expected the id of an entity, such as acme.site:lamp-7, or a filter, found 'lamp-7'"),
        (Wanted(""), "expected the id of an entity, such as acme.site:lamp-7, or a filter, found nothing"),
        (Wanted(" ", "stream"), "or a filter, found nothing"),
        (
            Wanted("acme:" + "a" * 3000),
            "expected an id of at most 256 characters, or a filter, found 3005 of them: 'acme:aa",
        ),
        (Wanted("acme:" + "a" * 3000 + "(7)"), "found 3008 of them"),
        (
            Wanted("a" * 3000 + "(7)"),
            "expected the id of an entity, such as acme.site:lamp-7, or a filter; Invalid filter",
        ),
        (Wanted("eq(attributes/x"), "position"),
        (Wanted("eq(nothing,1)"), "Unknown property name: nothing"),
        (Wanted(type="lamp"), "--type: expected one of thing, policy, stream, found lamp"),
        (Wanted("exists(attributes/x)", "policy"), "expected thing beside a filter"),
        (Wanted(begin="0"), "--from: expected a revision from 1 or a time"),
        (Wanted(end="-3"), "--to: expected a revision"),
        (Wanted(end="2030-01-15T12:00:00"), "with its zone"),
        (Wanted(begin="yesterday"), "found 'yesterday'"),
        (Wanted(begin="9", end="3"), "found 9, which is after 3"),
        (Wanted(begin="2030-01-15T12:00:01Z", end=TIME), "which is after"),
    ],
)
def test_words_that_mean_nothing_end_with_2_and_say_why(wanted: Wanted, said: str) -> None:
    with pytest.raises(ExportFailed) as refused:
        selection(wanted, NOW)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 600
    assert refused.value.exit_code == 2


@each_row(
    ("error", "code"),
    [
        (StoreUnavailable("full"), 1),
        (PipelineLost("gone"), 1),
        (TimeIsUp("late"), 1),
        (OutputUnusable("there"), 2),
        (TooManyRows("many"), 2),
        (ResultTooLarge("large"), 2),
        (NoPipeline("none"), 4),
        (NoWideQueries("off"), 4),
        (QueryCancelled("stopped"), 130),
    ],
)
def test_every_error_has_its_exit_code(error: StoreError, code: int) -> None:
    assert _exit_code(error) == code
