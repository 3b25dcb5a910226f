"""The words of operators: what a definition says of itself, and how a document is refused."""

from datetime import UTC, datetime

import pytest

from connectivity.errors import OperationRefused, Problem
from connectivity.management import Definition, Owner


def test_a_definition_is_tagged_with_its_revision() -> None:
    definition = Definition("depot-7", {"id": "depot-7"}, 4, Owner.API, datetime(2026, 1, 1, tzinfo=UTC))
    assert definition.tag == '"rev:4"'


@pytest.mark.parametrize(
    ("codes", "status", "more"),
    [
        (["connectivity:topic.invalid"], 400, ""),
        (["acknowledgement:label.not.unique"], 409, ""),
        (["connectivity:topic.invalid", "acknowledgement:label.not.unique"], 400, " (1 more problem)"),
        (["connectivity:topic.invalid"] * 3, 400, " (2 more problems)"),
    ],
)
def test_a_document_is_refused_by_its_first_problem_and_brings_all_of_them(
    codes: list[str], status: int, more: str
) -> None:
    problems = [Problem(f"targets[{index}]", "this", "that", code=code) for index, code in enumerate(codes)]
    refused = OperationRefused.of(problems)
    assert (refused.fault.status, refused.fault.error) == (status, codes[0])
    assert refused.fault.message == f"targets[0]: found this, expected that{more}"
    assert refused.problems == tuple(problems)
    assert refused.report is None
