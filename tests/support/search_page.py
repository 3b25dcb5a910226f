"""The things, policies and blocks of the documentation page about search."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.model.signals import Event
from spark_store.journal.journal import Journal
from spark_store.records import Change, Snapshot
from spark_store.rql.binding import fixed_width
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "search.md").read_text("utf-8")
BLOCKS = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
THINGS: Sequence[dict[str, Any]] = BLOCKS[0]


def policy(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "imports": {},
        "entries": {
            subject: {
                "subjects": {subject: {"type": "any"}},
                "resources": {
                    **{resource: {"grant": ["READ"], "revoke": []} for resource in may["grant"]},
                    **{resource: {"grant": [], "revoke": ["READ"]} for resource in may["revoke"]},
                },
            }
            for subject, may in shown.items()
        },
    }


WHOLE = {"_revision": 3, "_created": "2030-01-15T07:00:00Z", "_modified": "2030-01-15T07:00:00Z"}


def created(entity: EntityId, state: dict[str, Any], policy_id: str) -> Change:
    """Return the creation of an entity, at the time in `_modified`."""
    at = fixed_width({**WHOLE, **state}["_modified"])[:-4] + "Z"
    state = {name: value for name, value in state.items() if name[:1] != "_"}
    event = Event(entity, 1, at, "created", "/", json.dumps(state).encode(), b"{}")
    return Change((event,), (Snapshot(entity, 1, at, at, state, policy_id),))


def fill(journal: Journal) -> None:
    """Store the things and policies of the page."""
    policies = [(id, EntityType.POLICY, {"policyId": id, **policy(shown)}, id) for id, shown in BLOCKS[1].items()]
    things = [(thing["thingId"], EntityType.THING, thing, thing["policyId"]) for thing in THINGS]
    for id, kind, state, policy_id in (*policies, *things):
        entity = parse_entity_id(kind, id)
        assert entity is not None
        journal.append([created(entity, state, policy_id)])
