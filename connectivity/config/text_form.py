from __future__ import annotations

from dataclasses import dataclass

from pydantic_core.core_schema import CoreSchema, custom_error_schema, str_schema


@dataclass(frozen=True)
class TextForm:
    """A pattern that a text must match, in the annotation of a field, with its description for errors.

        endpoint: Annotated[str, TextForm(r"^https?://", "an address that begins with http:// or https://")]

    The pattern is ECMA 262, for the JSON schema.
    """

    pattern: str
    description: str

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        text = str_schema(pattern=self.pattern, strict=True)
        return custom_error_schema(text, custom_error_type="text_form", custom_error_message=self.description)
