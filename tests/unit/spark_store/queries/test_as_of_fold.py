"""Past states of things, folded from rows in any form that Spark returns, are those of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from mappings.ids import EntityId, EntityType
from mappings.json_values import encode_state, encode_value
from mappings.model.signals import Event
from spark_store.errors import LimitExceeded
from spark_store.history.event_view import thing_document
from spark_store.history.replay import is_same
from spark_store.queries.as_of import candidates, result_files
from spark_store.queries.as_of_fold import (
    KNOWN,
    Candidate,
    FoldOutput,
    FoldRow,
    fold_batches,
    fold_to_file,
    state_after,
    weaken,
)
from spark_store.records import Snapshot
from spark_store.rql import parse
from spark_store.rql.ast import And, Exists, Field, FieldKind, Not, Or, Predicate
from spark_store.rql.search_evaluator import May, holds, read
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.random_histories import HISTORIES, RandomChange, history_of
from tests.support.random_searches import filters, rights, things
from tests.support.replayed import fold

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-1")
NOW = datetime(2030, 6, 1, tzinfo=UTC)
AT = "2030-01-15T07:30:00.000000Z"
INPUT = pa.schema([(name, pa.int64() if name == "revision" else pa.string()) for name in FoldRow._fields])


def event_row(event: Event) -> FoldRow:
    value = None if event.value is None else event.value.decode()
    headers, at = event.headers.decode(), event.timestamp
    return FoldRow(str(event.entity), event.revision, event.action, event.path, value, headers, at, None, None)


def state_row(known: Snapshot) -> FoldRow:
    state = None if known.state is None else msgspec.json.encode(known.state).decode()
    times = known.modified, known.policy, known.created
    return FoldRow(str(known.entity), known.revision, KNOWN, None, state, None, *times)


def assert_state_after(rows: Sequence[FoldRow], expected: Snapshot) -> None:
    found = state_after(rows)
    if expected.state is None:
        assert found is None
        return
    assert found is not None
    state = found.state if found.state is not None else msgspec.json.decode(found.text or "")
    assert is_same(state, expected.state)
    assert (found.entity, found.revision) == (str(expected.entity), expected.revision)
    assert (found.created, found.modified) == (expected.created, expected.modified)


@given(HISTORIES, st.data())
def test_a_folded_thing_equals_its_replay_from_any_known_states(
    happenings: list[RandomChange], data: st.DataObject
) -> None:
    """States may stand anywhere among the events, also ones whose events are there too."""
    past = history_of(LAMP, happenings, range(1, 99))
    known = data.draw(st.sets(st.integers(0, len(past) - 1), max_size=2))
    first = data.draw(st.integers(0, min(known, default=-1) + 1))
    rows = [event_row(event) for event, _ in past[first:]] + [state_row(past[at][1]) for at in known]
    either = data.draw(st.booleans())
    assert_state_after(sorted(rows, key=lambda row: (row.revision, (row.action == KNOWN) is either)), past[-1][1])


def test_a_thing_with_missing_events_or_without_state_is_not_found() -> None:
    past = history_of(LAMP, [RandomChange("created", "/", {"attributes": {"n": n}}) for n in range(5)], range(1, 99))
    rows = [event_row(event) for event, _ in past]
    changed = [row._replace(action="modified", path="/attributes/n", value="1") for row in rows]
    assert state_after(changed[2:]) is None, "its beginning is missing"
    assert state_after([state_row(past[0][1]), *changed[3:]]) is None, "there is a hole"
    assert state_after([state_row(past[0][1]), changed[1], *changed[3:]]) is None, "and another one"
    assert state_after(rows[2:]) is not None, "a creation brings all of it"
    gone = Snapshot(LAMP, 3, past[0][1].created, past[2][1].modified, None, None)
    assert state_after([state_row(gone)]) is None


def test_numbers_of_past_things_keep_their_text() -> None:
    created = Event(LAMP, 1, "2030-01-15T07:30:00.000000Z", "created", "/", b'{"attributes":{"a":2e3}}', b"{}")
    changed = Event(LAMP, 2, "2030-01-15T07:31:00.000000Z", "modified", "/attributes/b", b"1.50", b"{}")
    merged = Event(LAMP, 3, "2030-01-15T07:32:00.000000Z", "merged", "/attributes", b'{"c":8.4E37}', b"{}")
    known = fold([created, changed])
    at = known.modified
    stored = FoldRow(str(LAMP), 2, KNOWN, None, encode_state(known.state).decode(), None, at, known.policy, at)
    events = [event_row(event) for event in (created, changed, merged)]
    for rows in (events, [stored, events[2]]):
        found = state_after(rows)
        assert found is not None
        assert encode_value(found.state) == b'{"attributes":{"a":2e3,"b":1.50,"c":8.4E37}}'


def test_metadata_is_removed_with_its_value_and_kept_for_other_values() -> None:
    headers = b'{"_metadata":[["/attributes/a/unit","W"],["/attributes/n/unit","kg"]]}'
    past = history_of(
        LAMP,
        [
            RandomChange("created", "/", {"attributes": {"a": 1, "n": 2}}, headers),
            RandomChange("modified", "/attributes/n", 3),
            RandomChange("modified", "/", {"attributes": {"n": 4}}),
        ],
        range(1, 99),
    )
    last = past[-1][1]
    assert (last.state or {})["_metadata"] == {"attributes": {"n": {"unit": "kg"}}}
    assert_state_after([event_row(event) for event, _ in past], last)
    assert_state_after([state_row(past[0][1]), *(event_row(event) for event, _ in past[1:])], last)


# A negated filter matches most things.
EVERY = Exists(Field(FieldKind.DOCUMENT, ("thingId",)))
PREDICATES = (
    filters(6) | filters(3).map(lambda part: And((EVERY, Not(part)))) | filters(3).map(lambda part: Or((EVERY, part)))
)


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(PREDICATES, things(), rights())
def test_a_weakened_predicate_holds_for_every_thing_any_reader_can_find(
    predicate: Predicate, thing: Any, may: May
) -> None:
    weak = weaken(predicate)
    if holds(predicate, thing, may) or holds(predicate, thing):
        accepted()
        assert holds(weak, thing)


@given(filters(3), st.lists(things(), max_size=4, unique_by=lambda thing: thing["thingId"]))
def test_a_past_thing_matches_as_a_present_one(predicate: Predicate, present: list[dict[str, Any]]) -> None:
    rows, matching = [], []
    for thing in sorted(present, key=lambda each: each["thingId"]):
        state = {name: value for name, value in thing.items() if name not in ("_revision", "_created", "_modified")}
        created, modified = thing["_created"], thing["_modified"]
        text = msgspec.json.encode(state).decode()
        rows.append(FoldRow(thing["thingId"], 1, KNOWN, None, text, None, modified, "acme:p", created))
        if holds(predicate, thing_document(thing["thingId"], 1, created, modified, state)):
            matching.append(thing["thingId"])
    batch = pa.RecordBatch.from_pylist([row._asdict() for row in rows], INPUT)
    (entity, *_, matches) = Candidate._fields
    found = [row for out in fold_batches(predicate, iter([batch])) for row in out.to_pylist()]
    assert [row[entity] for row in found if row[matches]] == matching


def test_only_below_a_not_is_anything_left_open() -> None:
    one, other = parse("eq(attributes/a,1)"), parse("exists(attributes/b)")
    anything = And(())
    assert weaken(And((one, other))) == And((one, other))
    assert weaken(And((one, Not(other)))) == And((one, anything))
    assert weaken(Or((one, And((other, Not(one)))))) == Or((one, And((other, anything))))


def test_things_across_batches_are_complete_and_only_possible_matches_are_returned() -> None:
    rows: list[FoldRow] = []
    for number in range(40):
        entity = EntityId(EntityType.THING, "acme.site", f"lamp-{number:02}")
        sets = [RandomChange("modified", "/attributes/n", number * 100 + it) for it in range(number % 4)]
        past = history_of(entity, [RandomChange("created", "/", {"attributes": {"n": -1}}), *sets], range(1, 99))
        rows += [event_row(event) for event, _ in past]
    table = [dict(zip(FoldRow._fields, row, strict=True)) for row in rows]
    batches = [pa.RecordBatch.from_pylist(table[at : at + 7], INPUT) for at in range(0, len(table), 7)]
    found = pa.Table.from_batches(fold_batches(None, iter(batches))).to_pylist()
    assert len(found) == 40
    assert tuple(found[0]) == Candidate._fields
    for number, row in enumerate(found):
        count = number % 4
        assert row["entity"] == f"acme.site:lamp-{number:02}"
        assert row["revision"] == 1 + count
        expected = number * 100 + count - 1 if count else -1
        assert msgspec.json.decode(row["state"]) == {"attributes": {"n": expected}}
        assert row["matches"] is True
    some = pa.Table.from_batches(fold_batches(parse("ge(attributes/n,3902)"), iter(batches))).to_pylist()
    assert [row["entity"] for row in some] == ["acme.site:lamp-39"]
    open_ = pa.Table.from_batches(fold_batches(parse("not(ge(attributes/n,3902))"), iter(batches))).to_pylist()
    assert [row["entity"] for row in open_ if not row["matches"]] == ["acme.site:lamp-39"]
    assert len(open_) == 40
    assert list(fold_batches(parse("eq(attributes/x,1)"), iter(batches))) == []
    timed = pa.Table.from_batches(fold_batches(read('ge(_modified,"2030-01-15T00:00:04Z")', NOW), iter(batches)))
    assert timed.num_rows == 10, "a quarter of them had four events"


def written(folder: Path, rows: Sequence[FoldRow], max_bytes: int) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist([row._asdict() for row in rows], INPUT)
    found = fold_to_file(None, FoldOutput(str(folder), max_bytes), iter([batch]))
    return [row for out in found for row in out.to_pylist()]


def known_things(sizes: Sequence[int]) -> list[FoldRow]:
    """Return things with states of so many characters that do not compress."""
    random = Random(7)
    return [
        FoldRow(f"acme:{place:04}", 1, KNOWN, None, random.randbytes(size // 2).hex(), None, AT, "acme:p", AT)
        for place, size in enumerate(sizes)
    ]


def test_a_worker_writes_its_things_into_one_file_in_parts_of_bounded_size(tmp_path: Path) -> None:
    sizes = [10] * 4_500 + [3 << 20] * 3
    (row,) = written(tmp_path, known_things(sizes), 1 << 30)
    assert row == {"file": str(next(tmp_path.iterdir())), "is_complete": True}
    parts = list(candidates(Path(row["file"])))
    assert [len(part) for part in parts] == [2_000, 2_000, 502, 1]
    assert [len(it.state) for part in parts for it in part] == sizes
    assert list(tmp_path.iterdir()) == []
    assert written(tmp_path, [], 1 << 30) == []


def test_a_worker_stops_writing_at_the_maximum_of_bytes_and_reports_it(tmp_path: Path) -> None:
    rows = known_things([5 << 20] * 4)
    (row,) = written(tmp_path, rows, 3 << 20)
    assert row["is_complete"] is False
    assert Path(row["file"]).stat().st_size < 9 << 20
    with pytest.raises(LimitExceeded, match="narrow the search"):
        result_files([Row(**row)])
