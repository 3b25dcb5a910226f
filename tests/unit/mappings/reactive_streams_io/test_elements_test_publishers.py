"""The test publishers: reactive-streams-io, names."""

from __future__ import annotations

from itertools import islice

from mappings.reactive_streams_io.elements import FAILURE, element_size, elements, ending, numbers
from mappings.reactive_streams_io.publisher_names import SyntheticName
from tests.support.table import each_row


def test_range_and_fail_count_in_decimal_digits() -> None:
    assert list(elements(SyntheticName("range", 11)))[8:] == [b"9", b"10", b"11"]
    assert list(elements(SyntheticName("fail", 2))) == [b"1", b"2"]
    assert ending(SyntheticName("range", 11)) is None
    assert ending(SyntheticName("fail", 2)) is FAILURE


def test_fixed_counts_in_integers_of_its_size_and_wraps_around() -> None:
    assert list(numbers(1, 3, 2)) == [b"\x00\x01", b"\x00\x02", b"\x00\x03"]
    assert list(numbers(255, 3, 1)) == [b"\xff", b"\x00", b"\x01"]
    assert list(numbers(65_535, 3, 2)) == [b"\xff\xff", b"\x00\x00", b"\x00\x01"]
    assert list(numbers(1, 1, 20)) == [bytes(19) + b"\x01"]


@each_row("size", [3, 16, 64, 65, 200])
@each_row(("first", "count"), [(1, 255), (1, 256), (255, 2), (256, 1), (300, 1000), (512, 512)])
def test_runs_of_whole_numbers_are_the_same_for_any_start(first: int, count: int, size: int) -> None:
    expected = [number.to_bytes(size, "big") for number in range(first, first + count)]
    assert list(numbers(first, count, size)) == expected


def test_only_fixed_has_a_size_of_elements() -> None:
    assert element_size(SyntheticName("fixed", 3, 2)) == 2
    assert element_size(SyntheticName("range", 3)) == 0


def test_an_endless_range_is_generated_on_demand() -> None:
    assert list(islice(elements(SyntheticName("range", 2**63 - 1)), 2)) == [b"1", b"2"]


def test_the_big_publisher_has_one_element_and_the_never_publisher_is_empty() -> None:
    assert list(elements(SyntheticName("big", size=5))) == [b"xxxxx"]
    assert list(elements(SyntheticName("never"))) == []
