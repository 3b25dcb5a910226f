"""Keys and their partitions: the numbers that clients count on."""

from __future__ import annotations

import pytest

from mappings.streams.stream_id import KeyHash, choose_partition, hash_key
from tests.support.table import each_row

NUMBERS = {
    "sensor-a": (354581781, -254279108),
    "sensor-b": (-361277657, -213788469),
    "pump/7": (493519343, 1118952666),
    "кухня": (-900731427, -1637139525),
    "日本": (1123670468, -422396339),
    "x": (463182398, 1642386589),
    "0": (2143318482, -2078224945),
    "truck-0042": (-2013914189, -1523530173),
    "org.acme:lamp-1": (-1950565246, 1159575054),
}


@each_row("key", NUMBERS)
def test_a_key_hashes_to_its_number(key: str) -> None:
    murmur, md5 = NUMBERS[key]
    assert hash_key(key, KeyHash.MURMUR3_SWAPPED) == murmur
    assert hash_key(key, KeyHash.MD5) == md5
    for partitions in (2, 3, 10, 100, 256):
        assert choose_partition(key, partitions) == abs(murmur) % partitions
        assert choose_partition(key, partitions, KeyHash.MD5) == abs(md5) % partitions


def test_case_p13_ten_partitions() -> None:
    assert [choose_partition(key, 10) for key in ("sensor-a", "sensor-b", "日本")] == [1, 7, 8]


def test_case_p14_ten_partitions_by_md5() -> None:
    assert [choose_partition(key, 10, KeyHash.MD5) for key in ("sensor-a", "sensor-b", "日本")] == [8, 9, 9]


@pytest.mark.parametrize("key", [None, ""])
def test_case_p15_without_a_key_every_partition_is_used(key: str | None) -> None:
    assert {choose_partition(key, 10) for _ in range(1000)} == set(range(10))


def test_one_partition_is_the_only_one() -> None:
    assert choose_partition("sensor-a", 1) == choose_partition(None, 1) == 0
