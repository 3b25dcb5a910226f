"""The setting `quotas`: how much each namespace and each subject may use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ByteSize, Field, model_validator

from connectivity.config.quantities import SIZE, Listed, Positive
from connectivity.config.section import Section

_Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Listed]
_Size = Annotated[ByteSize, Field(ge=1), SIZE]


class QuotaRule(Section):
    """The quotas of each namespace, or of each subject, that a pattern matches."""

    namespaces: _Patterns = Field(default=(), description="Patterns of namespaces, such as `org.acme.*`.")
    subjects: _Patterns = Field(default=(), description="Patterns of subjects, such as `device:*`.")
    things: Positive | None = Field(
        default=None, description="Things that exist; for a subject: that it created and that still exist."
    )
    policies: Positive | None = Field(default=None, description="The same of policies.")
    bytes: _Size | None = Field(
        default=None, description="Size of all things and policies of a namespace, as compact JSON."
    )
    events_per_day: Positive | None = Field(
        default=None, description="Changes from midnight UTC on, of a namespace or by a subject."
    )
    bytes_per_day: _Size | None = Field(default=None, description="Size of these changes.")
    subscriptions: Positive | None = Field(
        default=None, description="Open subscriptions to entities of a namespace, or of a subject."
    )
    searches: Positive | None = Field(
        default=None,
        description="Searches that run or wait at once, which name a namespace or are those of a subject.",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_kind(cls, value: Any) -> Any:
        if isinstance(value, dict):
            if bool(value.get("namespaces")) is bool(value.get("subjects")):
                raise ValueError("namespaces or subjects, but not both")
            if not set(value) - {"namespaces", "subjects"}:
                raise ValueError("at least one quota, such as things")
            if value.get("subjects") and value.get("bytes"):
                raise ValueError("bytes only together with namespaces; use bytes_per_day for subjects")
        return value
