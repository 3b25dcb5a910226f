"""Results of Spark about past states: permissions decide who sees them, by today's policy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal import erasure
from spark_store.journal.journal import Journal
from spark_store.journal.reader import EntityState, JournalReader
from spark_store.lake.tables import EVENTS, FULL_SNAPSHOTS, SNAPSHOTS, Lake, Table
from spark_store.queries.as_of import (
    CandidateAccess,
    instant,
    is_reached,
    matching,
    query,
    visible_parts,
    with_guards,
)
from spark_store.queries.as_of_fold import Candidate, FoldOutput
from spark_store.records import Change, StateGuard
from spark_store.rql.options import read_options
from spark_store.rql.query import Access, Thing, ThingQuery
from spark_store.rql.search_evaluator import read
from tests.support.journal_entries import timestamp
from tests.support.lake.pipeline_tables import add_events, add_states, event_row, latest_row, note_erased, write_lake
from tests.support.random_histories import RandomChange, history_of
from tests.support.replayed import fold

NOW = datetime(2030, 6, 1, tzinfo=UTC)
GONE, FREE = EntityId(EntityType.THING, "acme", "gone"), EntityId(EntityType.THING, "acme", "free")
POLICY = StateGuard("acme:owner", "acme")
LAST = b'{"policies":["acme:second"],"entries":{}}'


class AttributeReader:
    """May read all of a thing, or nothing but one attribute."""

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole

    def may(self, path: Sequence[str]) -> bool:
        return self.is_whole or tuple(path) == ("attributes", "a")

    def view(self, thing: Thing) -> Thing | None:
        return (
            thing
            if self.is_whole
            else {"attributes": {"a": thing["attributes"]["a"]}}
            if "attributes" in thing
            else None
        )


def lamp(name: str, state: str, *, matches: bool) -> CandidateAccess:
    return CandidateAccess(Candidate(f"acme:{name}", 3, timestamp(0), timestamp(1), state, matches), POLICY)


def ids(found: list[CandidateAccess], access: Access | None, text: str | None, options: str | None = None) -> list[str]:
    question = ThingQuery(None if text is None else read(text, NOW), read_options(options).order)
    return [it.entity.partition(":")[2] for _, it in sorted(matching(found, {POLICY: access}, question))]


def test_the_spark_match_applies_only_to_readers_with_full_permission() -> None:
    both = '{"attributes":{"a":1,"b":2}}'
    found = [lamp("yes", both, matches=True), lamp("no", both, matches=False), lamp("bare", "{}", matches=True)]
    whole, part = AttributeReader(is_whole=True), AttributeReader(is_whole=False)
    assert ids(found, None, None) == []
    assert ids(found, whole, "eq(attributes/b,2)") == ["bare", "yes"], "Spark has evaluated it"
    assert ids(found, part, "eq(attributes/b,2)") == []
    assert ids(found, part, "not(eq(attributes/b,2))") == ["no", "yes"], "what he may not read does not equal"
    assert ids(found, part, "eq(attributes/a,1)") == ["no", "yes"]
    assert ids(found, part, None) == ["no", "yes"], "nothing of a bare thing is there for him"


def test_things_are_sorted_by_the_values_the_reader_can_read() -> None:
    states = [(name, f'{{"attributes":{{"a":{a},"b":{b}}}}}') for name, a, b in (("x", 1, 9), ("y", 2, 8), ("z", 2, 7))]
    found = [lamp(name, state, matches=True) for name, state in states]
    assert ids(found, AttributeReader(is_whole=True), None, "sort(+attributes/b)") == ["z", "y", "x"]
    assert ids(found, AttributeReader(is_whole=False), None, "sort(+attributes/b)") == ["x", "y", "z"], (
        "missing, all of them"
    )
    (hit,) = visible_parts(found[:1], {POLICY: AttributeReader(is_whole=False)})
    assert (hit.thing_id, hit.thing) == ("acme:x", {"attributes": {"a": 1}})
    (hit,) = visible_parts(found[:1], {POLICY: AttributeReader(is_whole=True)})
    assert hit.thing["_modified"] == timestamp(1)
    assert list(visible_parts(found, {POLICY: None})) == []


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of two things: a deleted one with one policy and then another; one without a policy."""
    path = tmp_path / "journal.db"
    policies = [RandomChange("created", "/", {"policyId": f"acme:{it}"}) for it in ("first", "second")]
    lives = [
        history_of(GONE, [*policies, RandomChange("deleted", "/", None)], (1, 2, 3)),
        history_of(FREE, [RandomChange("created", "/", {})], (4,)),
    ]
    journal = Journal.open(path)
    journal.append([Change((event,), (state,), permissions=LAST) for life in lives for event, state in life])
    journal.close()
    return path


def test_a_deleted_thing_has_the_permissions_of_its_last_policy_at_the_deletion(journal: Path) -> None:
    """An erased thing, or one without a policy, is readable by no subject."""
    found = [
        Candidate(f"acme:{name}", 1, timestamp(0), timestamp(1), "{}", True) for name in ("gone", "free", "erased")
    ]
    with JournalReader.open(journal) as follower:
        assert [(it.candidate.entity, it.guard) for it in with_guards(follower, found)] == [
            ("acme:gone", StateGuard("", "acme", LAST))
        ]


def test_each_incarnation_of_a_thing_has_permissions_of_its_own(journal: Path) -> None:
    found = [Candidate("acme:gone", revision, timestamp(0), timestamp(1), "{}", True) for revision in (1, 3, 4, 5)]
    with JournalReader.open(journal) as follower:
        create_again(journal, GONE, 4)
        assert [(it.candidate.revision, it.guard.permissions) for it in with_guards(follower, found)] == [
            (1, LAST),
            (3, LAST),
            (4, None),
            (5, None),
        ]


def test_states_of_an_incarnation_without_known_permissions_are_nobodys(journal: Path) -> None:
    """States whose policy was erased, and states before the oldest known incarnation."""
    found = [Candidate("acme:gone", revision, timestamp(0), timestamp(1), "{}", True) for revision in (1, 2, 3)]
    changed = Journal.open(journal)
    changed.within(lambda it: it.execute("UPDATE incarnations SET first = 2"))
    changed.commit()
    with JournalReader.open(journal) as follower:
        assert [it.candidate.revision for it in with_guards(follower, found)] == [2, 3]
        changed.within(lambda it: erasure.begin(it, "policy", "acme:second", timestamp(99), "anna"))
        changed.commit()
        assert with_guards(follower, found) == []
    changed.close()


def erase(path: Path, entity: EntityId) -> None:
    journal = Journal.open(path)
    journal.within(lambda it: erasure.begin(it, "thing", entity.id, timestamp(99), "anna"))
    journal.commit()
    journal.close()


def create_again(path: Path, entity: EntityId, revision: int) -> None:
    event = Event(entity, revision, timestamp(100), "created", "/", b'{"policyId":"acme:third"}', b"{}")
    journal = Journal.open(path)
    journal.append([Change((event,), (fold([event]),))])
    journal.close()


def test_states_before_an_erasure_stay_hidden_after_the_thing_is_created_again(journal: Path) -> None:
    """Also for candidates found before the erasure: each page checks again."""
    found = [Candidate("acme:gone", revision, timestamp(0), timestamp(1), "{}", True) for revision in (2, 3, 4)]
    with JournalReader.open(journal) as follower:
        assert [it.candidate.revision for it in with_guards(follower, found)] == [2, 3]
        erase(journal, GONE)
        assert with_guards(follower, found) == []
        create_again(journal, GONE, 4)
        assert [(it.candidate.revision, it.guard) for it in with_guards(follower, found)] == [
            (4, StateGuard("acme:third", "acme"))
        ]


class FakeTables:
    """The tables of a lake, and which rows of each a question looks at."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.found: dict[str, list[tuple[str, int]]] = {}

    def read(self, table: Table, version: int | None = None) -> Any:
        return _Frame(self, table.name, deltalake.DeltaTable(self._lake.path(table), version))


class _Frame:
    def __init__(self, chosen: FakeTables, name: str, table: deltalake.DeltaTable) -> None:
        self._chosen, self._name, self._table = chosen, name, table

    def where(self, condition: str) -> _Frame:
        text = f"SELECT entity, revision FROM rows WHERE {condition} ORDER BY entity, revision"
        found = pa.table(deltalake.QueryBuilder().register("rows", self._table).execute(text).read_all())
        self._chosen.found[self._name] = [(it["entity"], it["revision"]) for it in found.to_pylist()]
        return self

    def __getattr__(self, _: str) -> Any:
        """Return a function that ignores its arguments and returns the same fake."""
        return lambda *_: self


@pytest.fixture
def lake(journal: Path) -> Lake:
    """A lake with a full snapshot after the first event, and a snapshot after the second one."""
    lake = Lake(journal.parent)
    write_lake(lake.data_dir)
    states = [latest_row(it) for it in _states(journal)]
    early = {"created": datetime.fromisoformat(timestamp(0)), "modified": datetime.fromisoformat(timestamp(0))}
    moment = [{**it, **early, "as_of": 1, "revision": 1, "seq": 1} for it in states]
    add_states(lake.data_dir, FULL_SNAPSHOTS, moment)
    add_states(lake.data_dir, SNAPSHOTS, [{**it, "revision": 2, "seq": 2} for it in states])
    return lake


EVERYTHING = {
    "events": [(str(FREE), 1), (str(GONE), 2), (str(GONE), 3)],
    "snapshots": [(str(FREE), 2), (str(GONE), 2)],
    "full_snapshots": [(str(FREE), 1), (str(GONE), 1)],
}


def whole(lake: Lake) -> Any:
    """A query of all things after everything."""
    question = ThingQuery(None, read_options(None).order)
    return query(lake, question, datetime.fromisoformat(timestamp(200)), FoldOutput("", 0))


def looked_at(lake: Lake, ask: Any) -> dict[str, list[tuple[str, int]]]:
    chosen: Any = FakeTables(lake)
    ask(chosen)
    found: dict[str, list[tuple[str, int]]] = chosen.found
    return found


def test_retention_between_the_pinning_and_the_reading_of_tables_hides_nothing(lake: Lake) -> None:
    ask = whole(lake)
    for table in (SNAPSHOTS, FULL_SNAPSHOTS, EVENTS):
        deltalake.DeltaTable(lake.path(table)).delete("revision < 3")
    assert looked_at(lake, ask) == EVERYTHING
    assert looked_at(lake, whole(lake))["snapshots"] == []


def test_a_query_skips_erased_rows_that_the_lake_still_has(journal: Path, lake: Lake) -> None:
    free, gone = str(FREE), str(GONE)
    assert looked_at(lake, whole(lake)) == EVERYTHING
    erase(journal, GONE)
    create_again(journal, GONE, 4)
    with JournalReader.open(journal) as follower:
        add_events(lake.data_dir, map(event_row, follower.entries(5, 5)), 5)
    expected = {"events": [(free, 1), (gone, 4)], "snapshots": [(free, 2)], "full_snapshots": [(free, 1)]}
    assert looked_at(lake, whole(lake)) == expected
    note_erased(lake.data_dir, 1)
    assert looked_at(lake, whole(lake))["full_snapshots"] == EVERYTHING["full_snapshots"], (
        "what the lake has carried out is not asked about again"
    )


def _states(journal: Path) -> list[EntityState]:
    with JournalReader.open(journal) as follower:
        return list(follower.states(1, 0))


@pytest.mark.parametrize(
    ("watermark", "second", "expected"),
    [(0, 1, True), (0, 2, False), (3, 4, True), (3, 5, False), (4, 900, True)],
)
def test_the_lake_has_everything_from_before_an_instant_or_not(
    journal: Path, watermark: int, second: int, expected: bool
) -> None:
    with JournalReader.open(journal) as follower:
        assert is_reached(follower, watermark, datetime.fromisoformat(timestamp(second))) is expected


def test_an_instant_of_nanoseconds_is_the_first_microsecond_that_is_not_before_it() -> None:
    at, second, step = datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000 * 10**9, timedelta(microseconds=1)
    assert [instant(second + it) for it in (-1, 0, 1, 1000, 1001)] == [at, at, at + step, at + step, at + 2 * step]
