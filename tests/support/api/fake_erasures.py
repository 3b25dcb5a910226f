"""A fake `Eraser` that only records its requests."""

from __future__ import annotations

from typing import Any

from connectivity.maintenance.erasure import ErasureUnavailable, UnknownEntity
from mappings.ids import EntityId


class Erasures:
    """Records the entities to erase. The name `none` is unknown, and `full` fails for lack of space."""

    def __init__(self) -> None:
        self.requests: list[tuple[EntityId, str]] = []

    async def erase(self, entity: EntityId, by: str) -> dict[str, Any]:
        if entity.name == "none":
            raise UnknownEntity("found no such thing")
        if entity.name == "full":
            raise ErasureUnavailable("the disk is full")
        self.requests.append((entity, by))
        return {"id": 1, "entity": str(entity)}

    async def all(self) -> list[dict[str, Any]]:
        return [{"id": 1}]
