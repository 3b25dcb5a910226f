"""The page of the HTTP API."""

from __future__ import annotations

from connectivity.api.errors import CODES
from tools.docs.api import api_page, description


def test_the_page_has_every_operation_and_every_code() -> None:
    page = api_page()
    for path, operations in description()["paths"].items():
        for method in operations:
            assert f"### {method.upper()} {path}\n" in page
    assert all(f"| `{code}` | {it.status} |" in page for code, it in CODES.items())
