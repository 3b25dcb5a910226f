"""The API asked by its own description: whatever it allows is answered as it says, whatever it forbids is refused.

What is allowed may be refused all the same: no schema says everything that a connection has to be. Wrong tokens
are sent in the tests of the guard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import APIOperation
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from connectivity.api.description import described
from tests.support.api.fake_management import app_of, furnished
from tests.support.dice import THOROUGH

LONG = pytest.mark.soak(shard="api")
TOKEN = "conformance-token"


async def _at_once(seconds: float) -> None:
    """Wrong tokens do not wait here."""


app = app_of(furnished(), token=TOKEN, sleep=_at_once)
refusals = {"checks": {"negative_data_rejection": {"expected-statuses": [400, 401, 404, 405, 409, 412, 415]}}}
schema = schemathesis.openapi.from_dict(
    json.loads(json.dumps(described(app, needs_token=True))), config=SchemathesisConfig.from_dict(refusals)
)
schema.app = app


@schema.auth()
class Bearer:
    """The token of an admin."""

    def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:
        return TOKEN

    def set(self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext) -> None:
        case.headers["authorization"] = f"Bearer {data}"


def keeps_to_its_description(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(excluded_checks=[positive_data_acceptance, ignored_auth])


def asked(operation: APIOperation[Any, Any, Any, Any], count: int) -> Callable[..., None]:
    """A test of one operation. pytest names those of one function alike, and of tests with one name only one is run."""
    only = schema.include(method=operation.method, path=operation.path)
    asking = settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    test: Callable[..., None] = only.parametrize()(asking(partial(keeps_to_its_description)))
    return test


for found in schema.get_all_operations():
    assert isinstance(found, Ok), found
    operation = found.ok()
    name = "_".join(re.findall(r"\w+", operation.label)).lower()
    globals()[f"test_an_operation_keeps_to_its_description_{name}"] = asked(operation, 12)
    if THOROUGH:
        # Asking for them takes long when tests are collected already.
        globals()[f"test_an_operation_keeps_to_its_description_for_long_{name}"] = LONG(asked(operation, 400))
