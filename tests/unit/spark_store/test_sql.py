"""Values in the text of a statement: each stays one value, with any content."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from spark_store.pipeline.retention_rules import RetentionRule, RetentionRules
from spark_store.sql import literal


def test_any_value_becomes_one_escaped_sql_literal() -> None:
    assert literal("it's \\ ${home}") == r"'it\'s \\ \u0024{home}'"
    assert literal(datetime(2030, 1, 15, 7, 30, tzinfo=UTC)) == "timestamp'2030-01-15T07:30:00+00:00'"
    east = timezone(timedelta(hours=2))
    assert literal(datetime(2030, 1, 15, 9, 30, tzinfo=east)) == "timestamp'2030-01-15T07:30:00+00:00'"


def test_nothing_in_a_statement_is_taken_for_a_variable_of_spark() -> None:
    assert "$" not in RetentionRules(RetentionRule(), {"${env:HOME}": RetentionRule(revisions=1)}).expired_condition(
        datetime.now(UTC), {}
    )
