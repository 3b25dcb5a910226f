"""Log fields that identify the conversation of a signal."""

from __future__ import annotations

import ast

from connectivity.monitoring.logs import log_context, trace_of
from tests.support.paths import ROOT
from tests.support.table import each_row

TRACE = "0af7651916cd43dd8448eb211c80319c"
CONTEXT = f"00-{TRACE}-b7ad6b7169203331-01"


def test_the_fields_have_correlation_id_and_trace_id() -> None:
    assert log_context({"correlation-id": "c-1", "traceparent": CONTEXT}) == {
        "correlation_id": "c-1",
        "trace_id": TRACE,
    }


def test_without_a_trace_there_is_no_field_for_it() -> None:
    assert log_context({"correlation-id": "c-1"}) == {"correlation_id": "c-1"}
    assert log_context({}) == {"correlation_id": None}


@each_row("odd", ["", "x", CONTEXT.upper(), f"{CONTEXT}0", "00-1-2-01", 7, None, "00-" + "x" * 5_000])
def test_an_invalid_trace_context_is_not_in_the_log(odd: object) -> None:
    assert trace_of({"traceparent": odd}) is None


def test_a_context_of_a_later_version_has_its_trace_at_the_same_place() -> None:
    assert trace_of({"traceparent": f"01-{TRACE}-b7ad6b7169203331-01-more"}) == TRACE


SYNONYMS = frozenset({"connection_id", "conn", "correlation", "correlation_id", "trace", "trace_id", "traceparent"})
"""Field names that log calls must not use, because `connection` and `log_context` provide them."""

LEVELS = frozenset({"debug", "info", "warning", "error", "exception"})


def log_fields(tree: ast.Module) -> set[str]:
    """Return the names of the fields in calls of `log`."""
    return {
        keyword.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
        for keyword in node.keywords
        if keyword.arg is not None
    }


def test_log_fields_are_named_consistently() -> None:
    package = ROOT / "connectivity"
    found = {file.name: log_fields(ast.parse(file.read_text(encoding="utf-8"))) for file in package.rglob("*.py")}
    assert any("connection" in names for names in found.values())
    assert {file: names & SYNONYMS for file, names in found.items() if names & SYNONYMS} == {}
