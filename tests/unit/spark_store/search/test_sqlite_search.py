"""Searching a file: every answer is the one that all things, held against the filter one by one, give."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.ids import EntityId, EntityType
from spark_store.errors import BudgetExceeded, StoreUnavailable
from spark_store.files import identity_of
from spark_store.journal.journal import Journal
from spark_store.records import Snapshot
from spark_store.rql.options import read_options
from spark_store.rql.order import TypeRank
from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.rql.query import Budget, SortValue, ThingQuery
from spark_store.rql.search_evaluator import read
from spark_store.search import read_view, sqlite_search
from spark_store.search.candidates import CandidateSet, IdScan
from spark_store.search.index import LARGE
from spark_store.search.matcher import Match, Matcher
from spark_store.search.read_view import CandidateRow
from spark_store.search.sqlite_search import SqliteSearch
from tests.support.clock import Clock
from tests.support.oracles.search import PartialReader, ReaderRights, StateDatabase, answer, with_rights
from tests.support.paths import VECTORS
from tests.support.random_questions import ACCESSES, BOUNDS, DECLARED, drawn, found, large_and_small, narrow, questions
from tests.support.table import each_row


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDatabase]:
    found = StateDatabase(tmp_path_factory.mktemp("search") / "journal.db")
    yield found
    found.close()


@pytest.fixture(scope="module")
def search(database: StateDatabase) -> Iterator[SqliteSearch]:
    found = SqliteSearch(database.path, slice_seconds=60.0)  # a busy machine ends no page early
    yield found
    found.close()


@given(
    large_and_small(14),
    questions(),
    ACCESSES,
    st.integers(1, 6),
    BOUNDS,
    DECLARED,
)
def test_every_answer_is_the_one_that_all_things_one_by_one_give(
    database: StateDatabase,
    search: SqliteSearch,
    things: list[dict[str, Any]],
    question: ThingQuery,
    accesses: Mapping[str, PartialReader],
    limit: int,
    bounds: Mapping[str, Any],
    declared: set[str],
) -> None:
    database.clear()
    database.declare(*declared)
    database.put(*things)
    rights = with_rights(accesses, database)
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch, bounds)
        pages = list(drawn(search, question, rights, limit))
    expected = [hit for _, hit in answer(things, question, rights)]
    assert list(itertools.chain.from_iterable(pages)) == expected
    assert all(len(page) == limit for page in pages[:-1])


# -- each numbered case of the filter language


NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
CASES: list[dict[str, Any]] = json.loads((VECTORS / "rql.json").read_text("utf-8"))
BESIDE = {"_revision": 1, "_created": "2024-05-01T10:00:00Z", "_modified": "2024-05-01T10:00:00Z"}
POLICY = "acme.site:pol-7"
WHOLE = PartialReader(lambda _: True, is_whole=True)


def query_for(text: str | None, *options: str) -> ThingQuery:
    return ThingQuery(None if text is None else read(text, NOW), read_options(",".join(options) or None).order)


@each_row("case", [pytest.param(case, id=f"case_{case['case']:03}") for case in CASES if case["search"] != "error"])
def test_case_of_the_filter_language_over_the_index(
    database: StateDatabase, search: SqliteSearch, case: dict[str, Any]
) -> None:
    thing = {"thingId": "acme.site:lamp-7", "policyId": POLICY, **BESIDE, **case["thing"]}
    database.clear()
    database.put({"thingId": "acme.site:other", "policyId": "acme.site:none", **BESIDE}, thing)
    rights = with_rights({POLICY: WHOLE}, database)
    assert found(search, query_for(case["filter"]), rights) == ["acme.site:lamp-7"] * bool(case["search"])


# -- many things


@pytest.fixture
def many(database: StateDatabase) -> ReaderRights:
    """A thousand things, and a subject that may read all of them."""
    database.clear()
    database.put(
        *(
            {
                "thingId": f"acme:{number * 7919 % 1000:04}",
                "policyId": POLICY,
                "attributes": {"n": number, "room": f"room-{number % 4}", "note": "x" * 100},
                **BESIDE,
            }
            for number in range(1000)
        )
    )
    return with_rights({POLICY: WHOLE}, database)


def test_all_pages_together_are_the_answer(search: SqliteSearch, many: ReaderRights) -> None:
    by_id = [f"acme:{number:04}" for number in range(1000)]
    by_number = [f"acme:{number * 7919 % 1000:04}" for number in range(1000)]
    for limit in (123, 500):
        assert found(search, query_for(None), many, limit) == by_id
        assert found(search, query_for(None, "sort(-thingId)"), many, limit) == by_id[::-1]
        assert found(search, query_for("ge(attributes/n,0)", "sort(+attributes/n)"), many, limit) == by_number
        assert found(search, query_for(None, "sort(-attributes/n)"), many, limit) == by_number[::-1]
        registries = sorted(range(1000), key=lambda number: (-(number % 4), by_number[number]))
        assert found(search, query_for(None, "sort(-attributes/room)"), many, limit) == [
            by_number[it] for it in registries
        ]


def test_a_thing_that_may_be_seen_whole_comes_as_its_text(search: SqliteSearch, many: ReaderRights) -> None:
    hit = search.page(query_for("eq(attributes/n,3)"), many, None, 5, Budget()).hits[0]
    assert hit.text is not None
    assert hit.text.startswith(b'{"thingId":')
    assert hit.thing["_revision"] == 1
    assert hit.thing["attributes"]["n"] == 3


def test_metadata_of_a_thing_is_not_part_of_its_text(database: StateDatabase, search: SqliteSearch) -> None:
    database.clear()
    database.put({"thingId": "acme:a", "policyId": POLICY, "_metadata": {"attributes": {"a": {"unit": "K"}}}, **BESIDE})
    hit = search.page(query_for(None), with_rights({POLICY: WHOLE}, database), None, 5, Budget()).hits[0]
    assert hit.text is None
    assert hit.thing["_metadata"] == {"attributes": {"a": {"unit": "K"}}}


def test_a_page_ends_when_its_bytes_are_enough_and_has_one_thing_at_least(
    search: SqliteSearch, many: ReaderRights
) -> None:
    page = search.page(query_for(None), many, None, 100, Budget(), max_bytes=1000)
    assert 1 < len(page.hits) < 6
    assert not page.is_last
    assert sum(len(hit.text or b"") for hit in page.hits) <= 1000
    assert len(search.page(query_for(None), many, page.place, 100, Budget(), max_bytes=1).hits) == 1


def test_everything_that_matches_can_be_gone_through_and_counted(search: SqliteSearch, many: ReaderRights) -> None:
    asked = query_for("lt(attributes/n,600)", "sort(-attributes/n)")
    assert [hit.thing["attributes"]["n"] for hit in search.every(asked, many, Budget())] == list(range(599, -1, -1))
    assert search.count(asked, many, Budget()) == 600
    assert search.count(query_for(None), ReaderRights({}), Budget()) == 0


def test_a_search_by_a_subject_in_few_policies_does_not_scan_all_things(
    database: StateDatabase, search: SqliteSearch, many: ReaderRights
) -> None:
    database.put(*({"thingId": f"acme:own-{n}", "policyId": "acme:own", **BESIDE} for n in range(3)))
    rights = with_rights({"acme:own": WHOLE}, database)
    database.connection.execute("DELETE FROM search_subjects WHERE policy = ?", (POLICY,))
    plan = search.explain(query_for("not(exists(attributes/none))"), rights)
    assert plan.known == 3
    assert found(search, query_for(None, "sort(-thingId)"), rights) == ["acme:own-2", "acme:own-1", "acme:own-0"]


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"FEW_OF_POLICIES": 0},
        {"FEW_OF_POLICIES": 0, "POLICIES": 1},
        {"FEW_OF_POLICIES": 0, "FEW_BESIDE_CANDIDATES": 0, "FEW_CANDIDATES": 0},
        {"FEW_OF_POLICIES": 0, "SORTABLE": 0, "_SMALL": 1, "LOST": 0, "bound_of": lambda things, page: 0},
        {"FEW_OF_POLICIES": 0, "SORTABLE": 0, "_SMALL": 1, "POLICIES": 1, "bound_of": lambda things, page: 0},
    ],
)
@pytest.mark.parametrize("is_declared", [False, True])
def test_a_search_evaluates_no_thing_whose_policy_names_others(
    database: StateDatabase, search: SqliteSearch, bounds: dict[str, Any], is_declared: bool
) -> None:
    own = {f"acme:own-{n}": f"acme:own-{n % 2}" for n in range(9)}
    others = {f"acme:{n}": f"acme:other-{n % 5}" for n in range(300)}
    database.clear()
    database.declare(*(["attributes/room"] if is_declared else []))
    database.put(
        *(
            {"thingId": id, "policyId": policy, "attributes": {"room": "hall", "n": int(id[-1])}, **BESIDE}
            for id, policy in (others | own).items()
        )
    )
    rights = with_rights({"acme:own-0": WHOLE, "acme:own-1": WHOLE}, database)
    database.name("stranger", others.values())
    evaluated: set[str] = set()
    match = Matcher.match_row

    def recording(self: Matcher, row: CandidateRow) -> Match | None:
        evaluated.add(row[1])
        return match(self, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Matcher, "match_row", recording)
        narrow(patch, bounds)
        for text in ('eq(attributes/room,"hall")', "not(eq(attributes/n,20))", None):
            for options in ("sort(-thingId)", "sort(+attributes/n)", "sort(+attributes/room)", "sort(+_revision)"):
                assert sorted(found(search, query_for(text, options), rights, 4)) == sorted(own), (text, options)
    assert evaluated == set(own)


# -- what a search may take


def test_a_requester_sees_the_namespaces_in_which_a_search_finds_something(
    database: StateDatabase, search: SqliteSearch, many: ReaderRights
) -> None:
    database.put({"thingId": "other:1", "policyId": "acme:other", **BESIDE})
    assert [search.sees(namespace, many) for namespace in ("acme", "other", "nothing")] == [True, False, False]
    assert not search.sees("acme", ReaderRights({}))


def test_a_page_that_searches_too_long_returns_its_position(database: StateDatabase, many: ReaderRights) -> None:
    with closing(SqliteSearch(database.path, slice_seconds=0.0)) as search:
        asked, place, pages = query_for('not(lt(thingId,"acme:0999"))'), None, 0
        while True:
            page = search.page(asked, many, place, 5, Budget(60.0))
            pages += 1
            if page.hits or page.is_last:
                break
            assert page.place is not None
            place = page.place
        assert [hit.thing_id for hit in page.hits] == ["acme:0999"]
        assert pages > 1


@pytest.mark.parametrize("more", [{}, {"POLICIES": 1}])
def test_a_page_ends_after_its_time_among_many_candidates_that_are_invisible(
    database: StateDatabase, many: ReaderRights, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    narrow(monkeypatch, {"FEW_BESIDE_CANDIDATES": 0, "FEW_OF_POLICIES": 0, "LOST": 0, **more})
    database.connection.execute("DELETE FROM search_subjects")
    rights = with_rights({"acme:own": WHOLE, "acme:more": WHOLE}, database)
    database.put({"thingId": "acme:~", "policyId": "acme:own", "attributes": {"n": 1}, **BESIDE})
    with closing(SqliteSearch(database.path, slice_seconds=0.0)) as search:
        page = search.page(query_for("ge(attributes/n,0)"), rights, None, 5, Budget(60.0))
        assert (list(page.hits), page.is_last) == ([], False)
        assert page.place is not None
        assert page.place[0].value < "acme:0200"


def test_things_that_take_long_to_judge_are_given_one_by_one_and_the_clock_is_asked_for_each(
    database: StateDatabase, many: ReaderRights
) -> None:
    with closing(SqliteSearch(database.path, slice_seconds=0.0)) as search:
        first = search.page(query_for("not(lt(attributes/n,0))"), many, None, 5, Budget(60.0))
        assert ([hit.thing_id for hit in first.hits], first.is_last) == (["acme:0000"], False)
        second = search.page(query_for("not(lt(attributes/n,0))"), many, first.place, 5, Budget(60.0))
        assert ([hit.thing_id for hit in second.hits], second.is_last) == (["acme:0001"], False)
        nothing = search.page(query_for("not(ge(attributes/n,0))"), many, None, 5, Budget(60.0))
        assert (list(nothing.hits), nothing.is_last) == ([], False)
        assert nothing.place is not None
        assert nothing.place[0].value == "acme:0000"


@pytest.mark.parametrize(
    "order", ["+attributes/room", "-attributes/room", "+attributes/room,-_modified", "-attributes/room,+attributes/n"]
)
def test_the_page_after_all_things_of_a_value_does_not_examine_them_again(
    database: StateDatabase, many: ReaderRights, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    narrow(monkeypatch, {"SORTABLE": 10, "bound_of": lambda things, page: 10})
    with closing(SqliteSearch(database.path, slice_seconds=0.0)) as search:
        asked = query_for(None, f"sort({order})")
        place, names = None, list[str]()
        while True:
            page = search.page(asked, many, place, 200, Budget(60.0))
            names += [hit.thing_id for hit in page.hits]
            if page.is_last:
                break
            assert page.place != place
            place = page.place
    assert len(names) == len(set(names)) == 1000


def test_a_thing_that_becomes_large_between_two_pages_is_found_once(
    database: StateDatabase, search: SqliteSearch, many: ReaderRights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large things are sorted by themselves; the rest of its room is in a list since the first page."""
    narrow(monkeypatch, {"SORTABLE": 10, "_SMALL": 10})
    asked = query_for("lt(attributes/n,900)", "sort(+attributes/room)")
    first = search.page(asked, many, None, 224, Budget(60.0))
    (last,) = {f"acme:{number * 7919 % 1000:04}" for number in range(0, 900, 4)} - {it.thing_id for it in first.hits}
    attributes = {"n": 1, "room": "room-0", "bulk": "x" * LARGE}
    database.put({"thingId": last, "policyId": POLICY, "attributes": attributes, **BESIDE})
    second = search.page(asked, many, first.place, 224, Budget(60.0))
    assert second.hits[0].thing_id == last
    assert len({hit.thing_id for hit in (*first.hits, *second.hits)}) == 448


@pytest.mark.parametrize("order", ["+thingId", "-thingId", "+attributes/room", "-_revision"])
def test_a_later_page_has_what_has_changed_or_become_visible_since_the_one_before(
    database: StateDatabase, search: SqliteSearch, order: str
) -> None:
    def thing(name: str, room: str, policy: str = POLICY) -> dict[str, Any]:
        return {"thingId": f"acme:{name}", "policyId": policy, "attributes": {"room": room}, **BESIDE}

    database.clear()
    first, last = ("z", "a") if order == "-thingId" else ("a", "z")
    old = [f"{first}-{number}" for number in range(3)]
    new = [f"{last}-changed", f"{last}-new", f"{last}-shared"]
    database.put(*(thing(name, "hall") for name in old), thing(new[0], "attic"), thing(new[2], "hall", "acme:shared"))
    asked = query_for('eq(attributes/room,"hall")', f"sort({order})")
    pages = [search.page(asked, with_rights({POLICY: WHOLE}, database), None, 2, Budget())]
    database.put(thing(new[0], "hall"), thing(new[1], "hall"))
    rights = with_rights({POLICY: WHOLE, "acme:shared": WHOLE}, database)
    pages.append(search.page(asked, rights, pages[0].place, 9, Budget()))
    names = [hit.thing_id.removeprefix("acme:") for page in pages for hit in page.hits]
    assert sorted(names) == sorted([*old, *new])


def test_all_pages_of_one_request_have_the_same_candidates(
    database: StateDatabase, search: SqliteSearch, many: ReaderRights, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, budget = query_for("lt(attributes/n,9)"), Budget()
    first = search.page(asked, many, None, 5, budget)
    database.put({"thingId": "acme:~", "policyId": POLICY, **BESIDE})
    monkeypatch.setattr(CandidateSet, "read", None)
    assert len(search.page(asked, many, first.place, 5, budget).hits) == 4


def test_cached_candidates_take_bounded_memory_and_those_of_the_newest_page_are_cached(
    search: SqliteSearch, many: ReaderRights, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = 40_000
    for most, cached in ((10 * one, range(2, 10)), (one, range(1, 2))):
        monkeypatch.setattr(sqlite_search, "_CACHED_BYTES", most)
        with closing(SqliteSearch(search.path)) as limited:
            asked = [query_for(f"ge(attributes/n,{number})") for number in range(20)]
            for question in asked:
                assert len(limited.page(question, many, None, 5, Budget(60.0)).hits) == 5
                place = (SortValue(TypeRank.TEXT, "acme:0000"),)
                assert limited._recall(question, place, Budget()).candidates.keys is not None
            found = [earlier.candidates.keys for earlier in limited._known.values() if earlier.candidates.keys]
            assert len(found) in cached
            assert len(found) == 1 or sum(sys.getsizeof(keys) + 28 * len(keys) for keys in found) <= most


def test_a_search_that_finds_nothing_in_its_time_ends(database: StateDatabase, many: ReaderRights) -> None:
    with closing(SqliteSearch(database.path, slice_seconds=0.0)) as search:
        budget = Budget(seconds=60.0, spent=60.0)
        with pytest.raises(BudgetExceeded, match="within 60 s"):
            search.page(query_for("not(ge(attributes/n,0))"), many, None, 5, budget)
        with pytest.raises(BudgetExceeded):
            search.page(query_for("lt(_revision,0)", "sort(-_revision)"), many, None, 5, budget)
        # The connection works as before.
        assert found(search, query_for("eq(attributes/n,3)"), many) == ["acme:0757"]


def test_pauses_for_commands_use_no_time_of_a_search(database: StateDatabase, many: ReaderRights) -> None:
    clock = Clock()

    def sleep(_: float) -> None:
        clock.advance(100.0)

    pace = SearchPace(lambda: clock.advance(0.0001), sleep)
    pace.busy_at = float("inf")
    with closing(SqliteSearch(database.path, thread := ThreadPace(pace))) as search:
        budget = Budget(seconds=5.0)
        names = [hit.thing_id for hit in search.every(query_for("not(lt(attributes/n,3))"), many, budget)]
    assert thread.rested > 1_000
    assert len(names) == len(set(names)) == 997


def test_a_page_with_hits_resets_the_time_budget_of_the_search(search: SqliteSearch, many: ReaderRights) -> None:
    budget = Budget(seconds=60.0, spent=1.0)
    search.page(query_for(None), many, None, 5, budget)
    assert budget.spent == 0.0


def test_a_page_and_the_policies_read_for_it_are_of_one_picture(
    database: StateDatabase, search: SqliteSearch, many: ReaderRights
) -> None:
    class Reading(ReaderRights):
        def access(self, policy: str, namespace: str) -> PartialReader | None:
            database.put({"thingId": "acme:0000", "policyId": POLICY, **BESIDE, "_revision": 2})
            seen.append(search.snapshot(EntityId(EntityType.THING, "acme", "0000")))
            return WHOLE

    seen: list[Snapshot | None] = []
    page = search.page(query_for(None), Reading({}), None, 5, Budget())
    assert page.hits[0].thing["_revision"] == 1
    assert [snapshot.revision for snapshot in seen if snapshot is not None] == [1]
    later = search.snapshot(EntityId(EntityType.THING, "acme", "0000"))
    assert later is not None
    assert (later.revision, later.policy, later.is_deleted) == (2, POLICY, False)
    assert search.snapshot(EntityId(EntityType.THING, "acme", "none")) is None


# -- problems of a file


def test_a_file_that_cannot_be_read_is_reported_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    file.write_bytes(b"this is no database at all, and long enough to be looked at" * 20)
    with pytest.raises(StoreUnavailable, match=r"journal\.db"), closing(SqliteSearch(file)) as search:
        search.page(query_for(None), ReaderRights({}), None, 5, Budget())
    with pytest.raises(StoreUnavailable, match="unable to open"):
        SqliteSearch(tmp_path / "none" / "journal.db")


def test_another_file_at_the_path_of_the_journal_is_neither_searched_nor_made(tmp_path: Path) -> None:
    file, former = tmp_path / "journal.db", tmp_path / "former.db"
    with closing(Journal.open(file)):
        identity = identity_of(file)
    with closing(SqliteSearch(file, identity=identity)):
        pass
    file.rename(former)
    with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
        SqliteSearch(file, identity=identity)
    assert not file.exists()
    file.write_bytes(former.read_bytes())
    with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
        SqliteSearch(file, identity=identity)


@pytest.mark.parametrize("state", [b'{"thingId":', b'{"attributes":{"n":"\xff"}}'])
def test_a_damaged_state_is_reported(
    database: StateDatabase, search: SqliteSearch, many: ReaderRights, state: bytes
) -> None:
    database.connection.execute("UPDATE entities SET state = ? WHERE id = 'acme:0003'", (state,))
    with pytest.raises(StoreUnavailable, match="damaged"):
        found(search, query_for("ge(attributes/n,0)"), many)


# -- how it would be answered


@pytest.mark.parametrize(
    ("text", "options", "way", "known"),
    [
        ("eq(attributes/n,7)", "sort(+thingId)", "all candidates", 1),
        ("exists(attributes/n)", "sort(+thingId)", "in the order of IDs", 1000),
        ("not(exists(attributes/n))", "sort(+thingId)", "in the order of IDs", 1000),
        ("eq(attributes/n,7)", "sort(+attributes/room)", "all candidates", 1),
    ],
)
def test_a_plan_describes_the_execution_of_a_query(
    search: SqliteSearch, many: ReaderRights, text: str, options: str, way: str, known: int
) -> None:
    plan = search.explain(query_for(text, options), many)
    assert str(plan).startswith(way)
    assert plan.known == known
    assert plan.things == 1000


@pytest.fixture
def clustered(database: StateDatabase) -> ReaderRights:
    """Five thousand things, each thousand of them, by ID, in its own room."""
    database.clear()
    ids = range(5000)
    database.put(
        *(
            {
                "thingId": f"acme:{n:04}",
                "policyId": POLICY,
                "attributes": {"n": n, "room": f"room-{n // 1000}"},
                **BESIDE,
            }
            for n in ids
        )
    )
    return with_rights({POLICY: WHOLE}, database)


@pytest.mark.parametrize(
    ("text", "options", "way"),
    [
        ('eq(attributes/room,"room-4")', "sort(+thingId)", "in the order of IDs, for one value"),
        (
            'and(ge(attributes/n,4000),eq(attributes/room,"room-4"))',
            "sort(+thingId)",
            "in the order of IDs, for one value",
        ),
        (None, "sort(-attributes/room)", "in the order of the sorted values"),
    ],
)
def test_things_of_one_value_at_a_declared_path_are_found_without_looking_at_others(
    database: StateDatabase, clustered: ReaderRights, text: str | None, options: str, way: str
) -> None:
    asked = query_for(text, options)
    database.declare("attributes/room")
    with closing(SqliteSearch(database.path, slice_seconds=60.0)) as search, pytest.MonkeyPatch.context() as patch:
        narrow(patch, {"SORTABLE": 10, "bound_of": lambda things, page: 10})
        plan = str(search.explain(asked, clustered))
        assert plan.startswith(way)
        assert "by the index of attributes/room itself" in plan
        loaded: list[int] = []
        load = read_view.ReadView.load

        def counting(self: read_view.ReadView, keys: Any) -> Any:
            loaded.extend(keys)
            return load(self, keys)

        patch.setattr(read_view.ReadView, "load", counting)
        patch.delattr(IdScan, "things")
        page = search.page(asked, clustered, None, 5, Budget())
        assert [hit.thing_id for hit in page.hits] == [f"acme:{n}" for n in range(4000, 4005)]
        assert len(loaded) <= 6
        following = search.page(asked, clustered, page.place, 5, Budget())
        assert [hit.thing_id for hit in following.hits] == [f"acme:{n}" for n in range(4005, 4010)]
    database.declare()
    with closing(SqliteSearch(database.path)) as search:
        assert "itself" not in str(search.explain(asked, clustered))
