"""A harness for `decide`: each decision changes the state for the next command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from connectivity.errors import TwinError
from connectivity.twins.context import CurrentStateLookup, TwinLimits
from connectivity.twins.decider import Decision, decide
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.model.signals import Command, Event
from spark_store.history.replay import evolve
from spark_store.records import Incarnation, PolicyReferences, Snapshot

OWNER = "edge:gateway-3"
VIEWER = "edge:viewer"
THING = "acme.plant:boiler-07"
POLICY = "acme.plant:boilers"
NOW = "2030-01-15T07:30:00.250000Z"
MERGE_PATCH = "application/merge-patch+json"

ALL = {"grant": ["READ", "WRITE"], "revoke": []}


def entry(subjects: Sequence[str], resources: Mapping[str, Any]) -> dict[str, Any]:
    return {"subjects": {subject: {"type": "test"} for subject in subjects}, "resources": dict(resources)}


def granting(*permissions: str) -> dict[str, list[str]]:
    return {"grant": list(permissions), "revoke": []}


def revoking(*permissions: str) -> dict[str, list[str]]:
    return {"grant": [], "revoke": list(permissions)}


OWNERS = entry([OWNER], {"policy:/": ALL, "thing:/": ALL, "message:/": ALL})


def thing(text: str) -> EntityId:
    found = parse_entity_id(EntityType.THING, text)
    assert found is not None
    return found


def policy(text: str) -> EntityId:
    found = parse_entity_id(EntityType.POLICY, text)
    assert found is not None
    return found


@dataclass
class TwinHarness:
    """The current states in a dictionary. `refused` checks that a refused command changes nothing."""

    limits: TwinLimits = field(default_factory=TwinLimits)
    now: str = NOW
    snapshots: dict[EntityId, Snapshot] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    incarnations: dict[EntityId, list[Incarnation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lookup = CurrentStateLookup(self.snapshots.get, lambda: self.now, lives=self)

    def ended(self, entity: EntityId) -> list[Incarnation]:
        return self.incarnations.get(entity, [])[::-1]

    def references(self, policy: EntityId) -> PolicyReferences:
        living = [found for found in self.snapshots.values() if found.state is not None]
        things = [found for found in living if found.entity.type is EntityType.THING and found.policy == policy.id]
        importing = [
            found for found in living if found.state is not None and policy.id in found.state.get("imports", {})
        ]
        return PolicyReferences(len(things), len(importing))

    def send(
        self,
        action: str,
        path: str = "/",
        value: Any = ...,
        *,
        by: Sequence[str] = (OWNER,),
        to: EntityId | str = THING,
        fields: str | None = None,
        **headers: Any,
    ) -> Decision:
        """Decide and carry out a command. Keywords are headers, with `_` for `-`; bytes are sent unchanged."""
        entity = thing(to) if isinstance(to, str) else to
        raw = None if value is ... else value if isinstance(value, bytes) else msgspec.json.encode(value)
        names = {name.replace("_", "-"): header for name, header in headers.items()}
        if action == "merge":
            names.setdefault("content-type", MERGE_PATCH)
        command = Command(entity, action, path, raw, {"correlation-id": "c-1", **names}, fields)
        decision = decide(command, by, self.lookup, self.now, self.limits)
        for event in decision.events:
            self.snapshots[event.entity] = evolve(self.snapshots.get(event.entity), event)
            self.events.append(event)
            if event.is_deletion:
                ended = self.incarnations.setdefault(event.entity, [])
                first = ended[-1].last + 1 if ended else 1
                ended.append(Incarnation(first, event.revision, decision.permissions))
        for snapshot in decision.snapshots:
            assert self.snapshots[snapshot.entity] == snapshot
            self.snapshots[snapshot.entity] = snapshot
        return decision

    def refused(self, action: str, path: str = "/", value: Any = ..., **more: Any) -> tuple[int, str]:
        """Return status and code of the error of a refused command."""
        return self.refusal(action, path, value, **more)[:2]

    def refusal(self, action: str, path: str = "/", value: Any = ..., **more: Any) -> tuple[int, str, str]:
        """Return status and code of the error, and the group of the topic of the error response."""
        before = dict(self.snapshots), len(self.events)
        try:
            decision = self.send(action, path, value, **more)
        except TwinError as error:
            assert (dict(self.snapshots), len(self.events)) == before
            return error.fault.status, error.fault.error, error.group
        raise AssertionError(f"found {decision.response}, expected a refusal")

    def status(self, action: str, path: str = "/", value: Any = ..., **more: Any) -> int:
        return self.send(action, path, value, **more).response.status

    def get(self, path: str = "/", **more: Any) -> Any:
        """Retrieve a value."""
        response = self.send("retrieve", path, **more).response
        assert response.status == 200
        assert response.value is not None
        return json.loads(response.value)

    def revision(self, entity: str = THING) -> int:
        return self.snapshots[thing(entity)].revision

    def write_policy(self, entries: Mapping[str, Any], to: str = POLICY, by: Sequence[str] = (OWNER,)) -> Decision:
        """Create or replace a policy."""
        value = {"policyId": to, "entries": {"OWNERS": OWNERS, **entries}}
        return self.send("modify", "/", value, to=policy(to), by=by)


def twin_harness(**thing_members: Any) -> TwinHarness:
    """Return a harness with the thing of the examples; OWNER has all permissions."""
    harness = TwinHarness()
    harness.write_policy({})
    harness.send("create", "/", {"policyId": POLICY, **thing_members})
    harness.events.clear()
    return harness


def last(harness: TwinHarness) -> tuple[str, str, Any, int]:
    """Return action, path, value and revision of the last event."""
    event = harness.events[-1]
    value = None if event.value is None else json.loads(event.value)
    return event.action, event.path, value, event.revision


def answer(decision: Decision) -> Any:
    """Return the value of a response."""
    return None if decision.response.value is None else json.loads(decision.response.value)
