"""The schemas of what the API sends and takes."""

from __future__ import annotations

import jsonschema_rs

from connectivity.api.schemas import ERASURE_EXAMPLE, schemas
from connectivity.maintenance.erasure import record_as_json
from connectivity.validation.validator import json_schema
from spark_store.journal.erasure import Erasure
from spark_store.lake.watermark import Watermark
from tests.support.api.fake_management import DOCUMENT
from tests.support.table import each_row

SCHEMAS = schemas()


@each_row("name", sorted(SCHEMAS))
def test_a_schema_is_one(name: str) -> None:
    assert jsonschema_rs.meta.is_valid({**SCHEMAS[name], "components": {"schemas": SCHEMAS}})


def test_the_connection_is_that_of_the_model() -> None:
    assert SCHEMAS["NewConnection"]["properties"].keys() == json_schema()["properties"].keys()
    assert SCHEMAS["Source"] == SCHEMAS["Source"] | {"type": "object"}
    jsonschema_rs.validate({**SCHEMAS["NewConnection"], "components": {"schemas": SCHEMAS}}, dict(DOCUMENT))


def test_a_new_connection_needs_neither_id_nor_status() -> None:
    new = {name: value for name, value in DOCUMENT.items() if name not in ("id", "connectionStatus")}
    jsonschema_rs.validate({**SCHEMAS["NewConnection"], "components": {"schemas": SCHEMAS}}, new)


def test_an_erasure_is_described_with_its_members() -> None:
    record = Erasure(1, "thing", "acme.site:lamp-7", 4711, "2026-02-03T09:12:40Z", "anna", None, None)
    assert record_as_json(record, Watermark()) == ERASURE_EXAMPLE
    assert SCHEMAS["Erasure"]["properties"].keys() == ERASURE_EXAMPLE.keys()
