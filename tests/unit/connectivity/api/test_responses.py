"""Responses of the API to unexpected requests and errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.api.responses import JsonResponse
from tests.support.api.fake_management import ask, management_with_connection


@pytest.mark.parametrize("value", [{"a": 2**70}, {"a": "\ud800"}, {"a": [1.5, None, "ü"]}])
def test_any_value_that_json_has_is_written(value: Any) -> None:
    assert json.loads(bytes(JsonResponse(value).body)) == value


@pytest.mark.parametrize("neighbor", [1, 2**70, "\ud800"])
def test_a_time_has_the_same_form_beside_any_value(neighbor: Any) -> None:
    at = datetime(2026, 2, 3, 9, 12, 45, 120_000, UTC)
    assert json.loads(bytes(JsonResponse([at, neighbor]).body)) == ["2026-02-03T09:12:45.120000Z", neighbor]


async def test_an_internal_error_is_logged_with_its_trace_and_answered_without_it() -> None:
    management = management_with_connection()
    management.refuses["definition"] = ZeroDivisionError("the password is pass-word")
    with capture_logs() as logged:
        answer = await ask(management, "GET", "/api/2/connections/site?fields=id")
    assert (answer.status_code, answer.json()["error"]) == (500, "internalerror")
    assert "pass-word" not in answer.text
    assert "Traceback" not in answer.text
    (line,) = logged
    assert (line["event"], line["path"], line["exc_info"]) == ("API request failed", "/api/2/connections/site", True)
    assert "fields" not in str(line), "a query may hold anything"


async def test_head_of_a_failure_has_no_body_either() -> None:
    management = management_with_connection()
    management.refuses["definition"] = ZeroDivisionError()
    with capture_logs():
        answer = await ask(management, "HEAD", "/api/2/connections/site")
    assert (answer.status_code, answer.content) == (500, b"")
