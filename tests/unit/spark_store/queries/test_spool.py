"""Search results in order, from a file without a name."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_store.errors import LimitExceeded, StoreUnavailable
from spark_store.queries.spool import Spool, SpoolLimits
from spark_store.rql.options import order_by, read_options
from spark_store.rql.order import key_of, sort_key, value_of
from spark_store.rql.query import SortField
from tests.support.open_files import open_files
from tests.support.random_searches import orders, things

BY_ID = order_by(())


@given(st.lists(things(), max_size=12), orders())
def test_records_come_in_the_order_of_the_answer(found: list[Any], order: tuple[SortField, ...]) -> None:
    spool = Spool(Path("/tmp"), order, SpoolLimits())
    try:
        for thing in found:
            spool.add(sort_key(thing, order), msgspec.json.encode(thing))
        spool.sort()
        by = key_of(order)
        expected = sorted(found, key=lambda thing: by(sort_key(thing, order)))
        assert spool.read(0, 100) == [msgspec.json.encode(thing) for thing in expected]
        assert spool.read(3, 2) == [msgspec.json.encode(thing) for thing in expected[3:5]]
        assert len(spool) == len(found)
    finally:
        spool.close()


def test_numbers_and_texts_of_any_kind_are_compared_exactly() -> None:
    values = [
        2**63 - 1,
        float(2**63),
        2**53 + 1,
        float(2**53),
        -1.5,
        10**400,
        "",
        "a\0",
        "a",
        "\uffff",
        "\U00010000",
        "\ud800",
    ]
    order = read_options("sort(+attributes/a)").order
    things: list[dict[str, Any]] = [
        {"thingId": f"acme:{place}", "attributes": {"a": value}} for place, value in enumerate(values)
    ]
    spool = Spool(Path("/tmp"), order, SpoolLimits())
    for place, thing in enumerate(things):
        spool.add(sort_key(thing, order), str(place).encode())
    spool.sort()
    by = key_of(order)
    assert spool.read(0, 99) == [
        it["thingId"].removeprefix("acme:").encode() for it in sorted(things, key=lambda it: by(sort_key(it, order)))
    ]
    spool.close()


def test_the_places_of_records_are_not_kept_in_memory(tmp_path: Path) -> None:
    places = [f"acme.site:{number * 7919 % 20_011:0120}" for number in range(20_000)]
    tracemalloc.start()
    spool = Spool(tmp_path, BY_ID, SpoolLimits())
    for id in places:
        spool.add((value_of(id + "-"),), id.encode())
    spool.sort()
    bytes_each = tracemalloc.get_traced_memory()[1] / len(places)
    tracemalloc.stop()
    assert [it.decode() for it in spool.read(0, 3)] == sorted(places)[:3]
    assert bytes_each < 50, "a number or two of each"
    spool.close()


def test_a_spool_that_is_closed_during_its_sort_is_released_by_the_sort(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BY_ID, SpoolLimits())
    for number in range(50_000):
        spool.add((value_of(f"{number * 7919 % 50_021:0100}"),), b"x")
    with ThreadPoolExecutor(1) as threads:
        sorting = threads.submit(spool.sort)
        spool.close()
    error = sorting.exception()
    assert error is None or "the search was cancelled" in str(error)
    assert not [it for it in open_files() if str(tmp_path) in it]


def test_both_the_number_and_the_bytes_have_a_bound_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    for bound in (SpoolLimits(records=2), SpoolLimits(bytes=8)):
        spool = Spool(tmp_path, BY_ID, bound)
        assert list(tmp_path.iterdir()) == [], "no file remains after a kill of this process"
        for id in ("b", "a"):
            spool.add((value_of(id),), id.encode() * 2)
        with pytest.raises(LimitExceeded, match="found more than 2 things of 6 bytes"):
            spool.add((value_of("c"),), b"cc")
        spool.close()


def test_a_closed_spool_and_a_missing_folder_are_reported(tmp_path: Path) -> None:
    spool = Spool(tmp_path, BY_ID, SpoolLimits())
    spool.add((value_of("a"),), b"a")
    spool.sort()
    spool.close()
    spool.close()
    for late in (lambda: spool.read(0, 1), lambda: spool.add((value_of("b"),), b"b")):
        with pytest.raises(StoreUnavailable, match="the search was cancelled"):
            late()
    with pytest.raises(StoreUnavailable, match="search results cannot be written"):
        Spool(tmp_path / "gone", BY_ID, SpoolLimits())
