"""A change of an entity that leads to a given state."""

from __future__ import annotations

from typing import Any

import msgspec

from mappings.ids import EntityId
from mappings.model.signals import Event
from spark_store.records import Change, Snapshot
from tests.support.journal_entries import timestamp


def change(entity: EntityId, revision: int, state: dict[str, Any] | None, created: int = 1) -> Change:
    action, value = ("deleted", None) if state is None else ("modified", msgspec.json.encode(state))
    event = Event(entity, revision, timestamp(revision), action, "/", value, b"{}")
    return Change((event,), (Snapshot(entity, revision, timestamp(created), timestamp(revision), state, "a:p"),))
