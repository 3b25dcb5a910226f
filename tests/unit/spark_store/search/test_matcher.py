"""Matching of one thing against a search, and its position in the order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import msgspec
import pytest

from spark_store.rql.options import read_options
from spark_store.rql.pace import SearchPace, ThreadPace
from spark_store.rql.query import ThingQuery
from spark_store.rql.search_evaluator import read
from spark_store.search.candidates import CachedCandidates
from spark_store.search.matcher import Matcher
from spark_store.search.read_view import CandidateRow, Deadline, ReadView, SearchTimeout
from tests.support.oracles.search import PartialReader, ReaderRights, StateDatabase

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
AT = "2024-05-01T10:00:00Z"
STATE = {"thingId": "acme:a", "policyId": "acme:p", "attributes": {"room": "hall", "level": 3}}
ROW: CandidateRow = (1, "acme:a", 7, AT, AT, "acme:p", msgspec.json.encode(STATE))
WHOLE = PartialReader(lambda _: True, is_whole=True)
LEVEL_ONLY = PartialReader(lambda path: path == ("attributes", "level") or path == ("thingId",), is_whole=False)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[StateDatabase]:
    found = StateDatabase(tmp_path / "journal.db")
    yield found
    found.close()


def judge(
    database: StateDatabase, text: str | None, access: PartialReader, sort: str = "sort(+attributes/room)", *names: str
) -> Matcher:
    question = ThingQuery(None if text is None else read(text, NOW), read_options(sort).order, frozenset(names))
    read_view = ReadView(database.connection, Deadline(float("inf"), 60.0, ThreadPace(SearchPace())))
    return Matcher(read_view, question, ReaderRights({"acme:p": access}), question.order, CachedCandidates())


def test_a_matching_row_has_its_sort_position_and_its_text(database: StateDatabase) -> None:
    found = judge(database, 'eq(attributes/room,"hall")', WHOLE).match_row(ROW)
    assert found is not None
    assert found.hit is not None
    assert found.hit.text == ROW[-1]
    assert [value.value for value in found.place] == ["hall", "acme:a"]
    assert found.size == len(ROW[-1])


@pytest.mark.parametrize("text", ['eq(attributes/room,"attic")', "gt(_revision,7)", "not(exists(attributes/level))"])
def test_a_row_that_does_not_match_gives_no_hit(database: StateDatabase, text: str) -> None:
    assert judge(database, text, WHOLE).match_row(ROW) is None


def test_an_unreadable_value_is_used_neither_to_match_nor_to_sort(database: StateDatabase) -> None:
    assert judge(database, 'eq(attributes/room,"hall")', LEVEL_ONLY).match_row(ROW) is None
    found = judge(database, "eq(attributes/level,3)", LEVEL_ONLY).match_row(ROW)
    assert found is not None
    assert found.place[0].value is None


def test_a_row_without_a_readable_policy_or_in_another_namespace_gives_no_hit(database: StateDatabase) -> None:
    assert judge(database, None, WHOLE, "sort(+thingId)", "acme").match_row(ROW) is not None
    assert judge(database, None, WHOLE, "sort(+thingId)", "acme.lab").match_row(ROW) is None
    assert judge(database, None, WHOLE).match_row((*ROW[:5], "acme:other", ROW[6])) is None
    assert judge(database, None, WHOLE).match_row((*ROW[:5], None, ROW[6])) is None


def test_everything_is_seen_where_every_policy_gives_all_or_nothing(database: StateDatabase) -> None:
    database.put({**STATE, "_revision": 1, "_created": AT, "_modified": AT})
    assert judge(database, None, WHOLE).sees_everything(["acme:p", "acme:none"])
    assert not judge(database, None, LEVEL_ONLY).sees_everything(["acme:p"])
    assert not judge(database, None, WHOLE).sees_everything(None)


@pytest.mark.parametrize("access", [WHOLE, LEVEL_ONLY], ids=["everything readable", "a part readable"])
def test_the_time_of_a_search_also_ends_between_the_comparisons_of_one_large_thing(
    database: StateDatabase, monkeypatch: pytest.MonkeyPatch, access: PartialReader
) -> None:
    ticks = count(1)
    monkeypatch.setattr(Deadline, "tick", lambda _: int(next(ticks) > 10))
    parts = [f'ilike(attributes/level,"*{number}*b*")' for number in range(240)]
    large = {**STATE, "attributes": {"level": ["aaa"] * 10_000}}
    matcher = judge(database, f"or({','.join(parts)})", access)
    with pytest.raises(SearchTimeout):
        matcher.match_row((*ROW[:6], msgspec.json.encode(large)))
    assert next(ticks) == 12
