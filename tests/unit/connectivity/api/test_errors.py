"""The table of error codes, and the content of error responses."""

from __future__ import annotations

import re

from connectivity.api.errors import CODES, error_body, fault, refusal
from connectivity.errors import Problem
from tests.support.table import each_row


@each_row("code", sorted(CODES))
def test_a_code_has_an_error_status_and_a_description(code: str) -> None:
    assert re.fullmatch(r"(api|connectivity|policies|thing-search|things):[a-z]+(\.[a-z]+)*|[a-z]+(\.[a-z]+)*", code)
    assert 300 < CODES[code].status < 600
    assert CODES[code].when


def test_a_fault_has_the_status_of_the_table() -> None:
    assert fault("api:path.notfound", "words").status == 404


def test_an_error_response_contains_only_the_known_fields() -> None:
    assert error_body(fault("api:path.notfound", "words")) == {
        "status": 404,
        "error": "api:path.notfound",
        "message": "words",
    }
    refused = refusal("json.invalid", "words", "more", [Problem("$", "x", "JSON", "a hint")])
    assert error_body(refused.fault, refused.problems) == {
        "status": 400,
        "error": "json.invalid",
        "message": "words",
        "description": "more",
        "problems": [{"path": "$", "found": "x", "expected": "JSON", "hint": "a hint"}],
    }
