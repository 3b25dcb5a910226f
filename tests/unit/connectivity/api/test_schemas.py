"""The schemas of what the API sends and takes."""

from __future__ import annotations

import jsonschema_rs
import pytest

from connectivity.api.schemas import schemas
from connectivity.spec import json_schema
from tests.support.api.fake_management import DOCUMENT

SCHEMAS = schemas()


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_schema_is_one(name: str) -> None:
    jsonschema_rs.meta.validate({**SCHEMAS[name], "components": {"schemas": SCHEMAS}})


def test_the_connection_is_that_of_the_model() -> None:
    assert SCHEMAS["Connection"]["properties"].keys() == json_schema()["properties"].keys()
    assert SCHEMAS["Source"] == SCHEMAS["Source"] | {"type": "object"}
    jsonschema_rs.validate({**SCHEMAS["Connection"], "components": {"schemas": SCHEMAS}}, dict(DOCUMENT))


def test_a_new_connection_needs_neither_id_nor_status() -> None:
    new = {name: value for name, value in DOCUMENT.items() if name not in ("id", "connectionStatus")}
    jsonschema_rs.validate({**SCHEMAS["NewConnection"], "components": {"schemas": SCHEMAS}}, new)
