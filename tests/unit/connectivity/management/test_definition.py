"""The operators' view of a definition."""

from datetime import UTC, datetime

from connectivity.management.definition import Definition, Owner


def test_a_definition_is_tagged_with_its_revision() -> None:
    definition = Definition("depot-7", {"id": "depot-7"}, 4, Owner.API, datetime(2026, 1, 1, tzinfo=UTC))
    assert definition.tag == '"rev:4"'
