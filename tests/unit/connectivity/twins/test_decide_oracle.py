"""Permissions over several policies against the obvious rule: thousands of random ones, with all that they may have."""

from __future__ import annotations

import random
from typing import Any

from connectivity.twins.world import PresentWorld
from mappings.ids import EntityId
from spark_store.records import Snapshot
from tests.support.dice import dice, examples
from tests.support.oracles.permissions import (
    Policy,
    a_value,
    flattened,
    obvious_has,
    obvious_partial,
    obvious_root,
    obvious_unrestricted,
    segments,
)
from tests.support.twin_world import policy

WORLDS, QUESTIONS = examples(1_500), 6
IDS = ("acme:a", "acme:b", "acme:c", "acme:missing")
SUBJECTS = ("edge:a", "edge:b", "edge:c")
LABELS = ("X", "Y", "Z")
KEYS = ("attributes", "x", "y", "thingId")
NAMESPACES = ("acme", "acme.plant", "acme.plant.hall", "other")
HOURS = [f"2030-01-15T{hour:02}:00:00Z" for hour in (6, 7, 8)]
NOWS = [f"2030-01-15T{time}.000000Z" for time in ("05:30:00", "06:00:00", "07:30:00", "08:00:00")]
PERMISSIONS = ((["READ"], []), ([], ["READ"]), (["WRITE"], ["READ"]), (["READ"], ["READ"]), (["READ", "WRITE"], []))


def a_policy(dice: random.Random, id: str) -> Policy:
    others = [other for other in IDS if other != id]
    return {
        "policyId": id,
        "imports": {other: an_import(dice, others) for other in dice.sample(others, dice.randint(0, 2))},
        "entries": {label: an_entry(dice) for label in dice.sample(LABELS, dice.randint(0, 3))},
    }


def an_import(dice: random.Random, others: list[str]) -> Policy:
    wanted: Policy = {"entries": dice.sample(LABELS, dice.randint(0, 2))}
    if dice.random() < 0.5:
        wanted["transitiveImports"] = dice.sample(others, dice.randint(0, 2))
    return wanted


def an_entry(dice: random.Random) -> Policy:
    resources = {}
    for _ in range(dice.randint(0, 2)):
        granted, revoked = dice.choice(PERMISSIONS)
        path = "/".join(dice.choices(KEYS, k=dice.randint(0, 3)))
        resources[f"thing:/{path}"] = {"grant": granted, "revoke": revoked}
    entry: Policy = {
        "subjects": {subject: a_subject(dice) for subject in dice.sample(SUBJECTS, dice.randint(0, 2))},
        "resources": resources,
        "importable": dice.choice(("implicit", "implicit", "explicit", "never")),
    }
    if dice.random() < 0.3:
        local = [{"entry": dice.choice(LABELS)}]
        entry["references"] = local + [{"import": dice.choice(IDS), "entry": dice.choice(LABELS)}] * dice.randint(0, 1)
    if dice.random() < 0.3:
        entry["allowedAdditions"] = dice.sample(("subjects", "resources"), dice.randint(0, 2))
    if dice.random() < 0.3:
        entry["namespaces"] = dice.sample(("acme", "acme.*", "acme.plant.*", "other"), dice.randint(0, 2))
    return entry


def a_subject(dice: random.Random) -> dict[str, Any]:
    return {"type": "t", "expiry": dice.choice(HOURS)} if dice.random() < 0.3 else {"type": "t"}


def test_what_is_enforced_agrees_with_the_obvious_rule() -> None:
    """Imports, circles of them, references, namespaces, expiries and several subjects; asked at several times."""
    chance = dice("decide")
    for _ in range(WORLDS):
        states = {id: a_policy(chance, id) for id in IDS[:3]}
        snapshots: dict[EntityId, Snapshot] = {
            policy(id): Snapshot(policy(id), 1, "", "", state, id) for id, state in states.items()
        }
        clock = [NOWS[0]]
        world = PresentWorld(snapshots.get, lambda clock=clock: clock[0])
        for number in range(QUESTIONS):
            if number == QUESTIONS // 2:
                # One of them changes: whoever imports it has to notice.
                changed = chance.choice(IDS[:3])
                states[changed] = a_policy(chance, changed)
                snapshots[policy(changed)] = Snapshot(policy(changed), 2, "", "", states[changed], changed)
            clock[0] = max(clock[0], chance.choice(NOWS))
            namespace, id = chance.choice(NAMESPACES), chance.choice(IDS[:3])
            enforcer = world.enforcer(id, namespace)
            assert enforcer is not None
            flat = flattened(id, states, clock[0], namespace)
            subjects = chance.sample(SUBJECTS, chance.randint(0, 3))
            path = "thing:/" + "/".join(chance.choices(KEYS, k=chance.randint(0, 3)))
            about = (states, id, namespace, clock, subjects, path)
            for permission in ("READ", "WRITE"):
                question, facts = (subjects, permission, path), (flat, subjects, permission, segments(path))
                assert enforcer.has(*question) == obvious_has(*facts), about
                assert enforcer.unrestricted(*question) == obvious_unrestricted(*facts), about
                assert enforcer.partial(*question) == obvious_partial(*facts), about
            thing = {"thingId": "a:b", "attributes": a_value(chance, KEYS), "x": a_value(chance, KEYS)}
            assert enforcer.view(thing, "thing:/", subjects) == obvious_root(flat, subjects, thing), about
