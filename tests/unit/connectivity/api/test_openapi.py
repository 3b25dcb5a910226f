"""The OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from connectivity import __version__
from connectivity.api.errors import CODES
from tests.support.api.fake_management import app_of, client_of
from tests.support.table import each_row
from tools.docs.api import description

DOCUMENT = description()
OPERATIONS = [
    pytest.param(path, method, operation, id=operation["operationId"])
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for it in value.values():
            yield from references(it)
    elif isinstance(value, list):
        for it in value:
            yield from references(it)


def test_it_is_openapi_3_1_and_its_references_lead_somewhere() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"]["version"] == __version__
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= known
    assert "NewConnection" in DOCUMENT["components"]["schemas"]


@each_row(("path", "method", "operation"), OPERATIONS)
def test_an_operation_reports_its_answers_with_codes_and_examples(
    path: str, method: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert "422" not in operation["responses"]
    for status, answer in operation["responses"].items():
        for code, example in answer.get("content", {}).get("application/json", {}).get("examples", {}).items():
            assert (example["value"]["error"], CODES[code].status) == (code, int(status))
    assert {"internalerror"} <= operation["responses"]["500"]["content"]["application/json"]["examples"].keys()
    assert path.startswith("/health") or "401" in operation["responses"]


@each_row(("path", "method", "operation"), OPERATIONS)
def test_the_examples_of_an_operation_fit_its_schemas(path: str, method: str, operation: dict[str, Any]) -> None:
    places = [operation.get("requestBody", {}), *operation["responses"].values()]
    for kind, content in (pair for place in places for pair in place.get("content", {}).items()):
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        found = [content["example"]] if "example" in content else []
        found += [it["value"] for it in content.get("examples", {}).values()]
        assert found or kind.startswith(("text/", "application/openmetrics"))
        for example in found:
            jsonschema_rs.validate(schema, example)


async def test_the_description_is_served_and_shows_whether_a_token_is_needed() -> None:
    async with client_of(app_of()) as client:
        served = await client.get("/openapi.json")
        assert served.headers["content-type"] == "application/json"
        assert served.json() == json.loads(json.dumps(DOCUMENT))
        assert "security" not in served.json()
    async with client_of(app_of(token="secret")) as client:
        assert (await client.get("/openapi.json")).status_code == 401
        served = await client.get("/openapi.json", headers={"authorization": "Bearer secret"})
        assert served.json()["security"] == [{"bearer": []}]
        assert served.json()["paths"]["/health/live"]["get"]["security"] == [{"bearer": []}, {}]
