"""The JSON Schema of a connection document."""

from __future__ import annotations

from typing import Any

from connectivity.connections.model import Connection
from connectivity.transports import connection_types

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a connection document, for editors and other checkers."""
    schema = Connection.model_json_schema(by_alias=True)
    schema["properties"]["connectionType"]["enum"] = list(connection_types())
    return {"$schema": SCHEMA_DIALECT, **schema}
