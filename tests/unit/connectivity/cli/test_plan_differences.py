"""Differences between two documents of one connection: the vectors, and invalid documents."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from connectivity.cli.plan import compare
from connectivity.validation.validator import parse
from tests.support.paths import VECTORS
from tests.support.table import each_row
from tests.support.vectors.connections import base_document

CASES: dict[str, Any] = yaml.safe_load((VECTORS / "differences" / "cases.yaml").read_text(encoding="utf-8"))


@each_row("case", CASES["cases"], ids=lambda case: case["name"])
def test_documents_are_compared_by_meaning(case: dict[str, Any]) -> None:
    before, after = (CASES["base"] | case.get(name, {}) for name in ("before", "after"))
    found = compare(before, after)
    assert {change.path: [change.before, change.after] for change in found.changes} == case.get("changes", {})
    assert list(found.unknown) == case.get("unknown", [])
    assert "s3cr3t" not in repr(found)


@pytest.mark.parametrize("name", ["shared", "amqp_091", "kafka"])
def test_a_document_is_the_same_as_itself_with_all_defaults(name: str) -> None:
    document = base_document(name)
    whole = parse(document, environ={}).model_dump(mode="json", by_alias=True)
    found = compare(whole, document)
    # The default header mappings of a source depend on the connection type, which no schema expresses.
    assert [change.path for change in found.changes if not change.path.startswith("sources[")] == []


ODD: list[Any] = [None, 7, "x", [], [None], {}, {"a": None}, [[{}]], {"enabled": {}}, True]
FIELDS = ("sources", "targets", "uri", "credentials", "sshTunnel", "specificConfig", "mappingContext", "tags", "id")


@each_row("field", FIELDS)
def test_a_document_of_any_shape_can_be_compared(field: str) -> None:
    for before in ODD:
        for after in ODD:
            base = CASES["base"]
            compare(base | {field: before}, base | {field: after})
            assert compare(base | {field: before}, base | {field: before}).changes == ()
