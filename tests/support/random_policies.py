"""Random policies with imports, references, namespaces and expiries."""

from __future__ import annotations

import random
from typing import Any

from tests.support.oracles.permissions import Policy

IDS = ("acme:a", "acme:b", "acme:c", "acme:missing")
SUBJECTS = ("edge:a", "edge:b", "edge:c")
LABELS = ("X", "Y", "Z")
KEYS = ("attributes", "x", "y", "thingId")
NAMESPACES = ("acme", "acme.plant", "acme.plant.hall", "other")
HOURS = [f"2030-01-15T{hour:02}:00:00Z" for hour in (6, 7, 8)]
NOWS = [f"2030-01-15T{time}.000000Z" for time in ("05:30:00", "06:00:00", "07:30:00", "08:00:00")]
PERMISSIONS: tuple[tuple[list[str], list[str]], ...] = (
    (["READ"], []),
    ([], ["READ"]),
    (["WRITE"], ["READ"]),
    (["READ"], ["READ"]),
    (["READ", "WRITE"], []),
)


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
