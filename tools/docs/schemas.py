"""Generates the JSON Schemas of connection files and settings, and the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

from connectivity.config.settings_schema import settings_schema
from connectivity.validation.file_schema import file_schema
from tools.docs.api import description


def schema_files() -> dict[str, str]:
    """The JSON of each file, by its path under `docs`."""
    return {
        "reference/openapi.json": json_text(description(needs_token=True)),
        "reference/connection.schema.json": json_text(file_schema()),
        "reference/settings.schema.json": json_text(settings_schema()),
    }


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
