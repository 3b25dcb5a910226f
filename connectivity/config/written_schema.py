"""JSON Schemas of what people write: default durations are texts such as `10m`, not ISO 8601."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import WithDefaultSchema

from connectivity.config.quantities import duration_text

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class WrittenSchema(GenerateJsonSchema):
    """A generator of JSON Schemas for `model_json_schema`."""

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        """A group has no default of its own: those of its fields say the same."""
        if isinstance(schema.get("default"), BaseModel):
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def encode_default(self, dft: Any) -> Any:
        return duration_text(dft) if isinstance(dft, timedelta) else super().encode_default(dft)
