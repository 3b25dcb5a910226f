"""Validation of Kafka connection documents, and the meaning of addresses and limits."""

from __future__ import annotations

import pytest

from connectivity.transports.kafka.connector import limit_share
from connectivity.transports.kafka.records import RecordAddress, split_address
from tests.support.table import each_row
from tests.support.vectors.connections import Case, load_cases


@each_row("case", load_cases("kafka"), ids=str)
def test_a_document_has_the_problems_of_its_rule(case: Case) -> None:
    case.check()


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("t", RecordAddress("t")),
        ("t/k", RecordAddress("t", key="k")),
        ("t/k/l", RecordAddress("t", key="k/l")),
        ("t/", RecordAddress("t", key="")),
        ("t#3", RecordAddress("t", partition="3")),
        ("t#3#4", RecordAddress("t", partition="3#4")),
        ("t#a/k", RecordAddress("t#a", key="k")),
    ],
)
def test_2_4_a_slash_is_searched_before_a_hash(address: str, parts: RecordAddress) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(("limit", "shares"), [(None, [None] * 3), (9, [3, 3, 3]), (10, [4, 3, 3]), (1, [1, 1, 1])])
def test_case_51_the_consumers_of_a_client_share_its_limit(limit: int | None, shares: list[int | None]) -> None:
    """No consumer is left without: a partition that it has would never be read."""
    assert [limit_share(limit, 3, member) for member in range(3)] == shares
