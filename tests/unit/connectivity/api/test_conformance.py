"""The API agrees with its OpenAPI description: valid requests are answered as it says.

Invalid ones are refused. Valid ones may be refused too, because no schema can express all rules of connections. Wrong tokens
are sent in the tests of the guard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from jsonschema_rs import is_valid
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.meta import TestPhase
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from connectivity.api.openapi import openapi_document
from tests.support.api.fake_management import app_of, management_with_connection
from tests.support.dice import THOROUGH, dice

TOKEN = "conformance-token"
DOCUMENTS = {"POST /api/2/connections", "PUT /api/2/connections/{connection_id}"}
"""Operations whose body is a connection: 2,000 boundary cases.

`make test` sends each eighth, `make soak` sends all.
"""


async def _at_once(seconds: float) -> None:
    """Disable the delays of wrong tokens."""


def becomes_valid_on_the_way(case: schemathesis.Case[Any]) -> bool:
    """Return whether invalid query values are valid once encoded: `false` and `["false"]` are one text."""
    schemas = {parameter.name: parameter.definition["schema"] for parameter in case.operation.query}
    wrong = {
        name: value
        for name, value in (case.query or {}).items()
        if name in schemas and not is_valid(schemas[name], value)
    }
    return bool(wrong) and all(
        any(is_valid(schemas[name], sent) for sent in forms_sent(value)) for name, value in wrong.items()
    )


def forms_sent(value: object) -> Iterator[object]:
    """A value of a query as the server reads it: a text, or a list of texts."""
    values = value if isinstance(value, list) else [value]
    if all(isinstance(it, str | bool | int | float) for it in values):
        texts = [it if isinstance(it, str) else json.dumps(it) for it in values]
        yield texts
        if len(texts) == 1:
            yield texts[0]


@pytest.fixture(scope="module")
def schema() -> BaseSchema:
    """The description, built when the first test needs it and not when tests are collected."""
    # With subjects: a search or a check of permissions without any is refused before its parts are read.
    admin = {"name": "conformance", "token": TOKEN, "role": "admin", "subjects": ["acme:anna"]}
    app = app_of(management_with_connection(), tokens=[admin], hosts=["testserver"], sleep=_at_once)
    refusals = {"checks": {"negative_data_rejection": {"expected-statuses": [400, 401, 404, 405, 409, 412, 415]}}}
    schema = schemathesis.openapi.from_dict(
        json.loads(json.dumps(openapi_document(app, needs_token=True))), config=SchemathesisConfig.from_dict(refusals)
    )
    schema.app = app
    number = count(dice("boundary cases of connections").randrange(8))

    @schema.auth()
    class Bearer:
        """The token of an admin."""

        def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:
            return TOKEN

        def set(self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext) -> None:
            case.headers["authorization"] = f"Bearer {data}"

    @schema.hook
    def filter_case(context: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
        is_boundary = case.meta is not None and case.meta.phase.name is TestPhase.COVERAGE
        if becomes_valid_on_the_way(case):
            return False
        return THOROUGH or not is_boundary or case.operation.label not in DOCUMENTS or next(number) % 8 == 0

    return schema


loaded = schemathesis.pytest.from_fixture("schema")
usual = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
long = settings(usual, max_examples=400)


@pytest.mark.slow(reason="an eighth of 2,000 boundary cases of a connection is sent, each through the whole API")
@loaded.parametrize()
@usual
def test_an_operation_keeps_to_its_description(case: schemathesis.Case[Any]) -> None:
    """A subtest for each operation."""
    case.call_and_validate(excluded_checks=[positive_data_acceptance, ignored_auth])


@pytest.mark.soak(shard="api")
@loaded.parametrize()
@long
def test_an_operation_follows_its_description_for_many_requests(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(excluded_checks=[positive_data_acceptance, ignored_auth])
