"""The JSON Schema of the settings file, for editors and other checkers."""

from __future__ import annotations

from typing import Any

from connectivity.config.settings import Settings
from connectivity.config.written_schema import SCHEMA_DIALECT, WrittenSchema


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file.

    It wants words in lower case; the service reads them in any.
    """
    schema = Settings.model_json_schema(schema_generator=WrittenSchema)
    return {"$schema": SCHEMA_DIALECT, "$id": "urn:broker-connectivity:settings", **schema}
