"""Random policies with imports, references, namespaces and expiries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.oracles.permissions import Policy

IDS = ("acme:a", "acme:b", "acme:c", "acme:missing")
MORE_IDS = (*IDS, "acme:d", "acme:e", "acme:f")
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


def a_policy(dice: random.Random, id: str, ids: Sequence[str] = IDS) -> Policy:
    """Return a policy that imports some of `ids`; its entries mostly refer to these imports."""
    others = [other for other in ids if other != id]
    imports = {other: an_import(dice, others) for other in dice.sample(others, dice.randint(0, min(2, len(others))))}
    return {
        "policyId": id,
        "imports": imports,
        "entries": {
            label: an_entry(dice, [*imports, *imports, *ids]) for label in dice.sample(LABELS, dice.randint(0, 3))
        },
    }


def an_import(dice: random.Random, others: list[str]) -> Policy:
    wanted: Policy = {"entries": dice.sample(LABELS, dice.randint(0, 2))}
    if dice.random() < 0.5:
        wanted["transitiveImports"] = dice.sample(others, dice.randint(0, min(4, len(others))))
    return wanted


def an_entry(dice: random.Random, ids: Sequence[str] = IDS) -> Policy:
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
    if dice.random() < 0.4:
        entry["references"] = [
            {"entry": dice.choice(LABELS)}
            if dice.random() < 0.4
            else {"import": dice.choice(ids), "entry": dice.choice(LABELS)}
            for _ in range(dice.randint(0, 3))
        ]
    if dice.random() < 0.3:
        entry["allowedAdditions"] = dice.sample(("subjects", "resources", "namespaces"), dice.randint(0, 3))
    if dice.random() < 0.3:
        entry["namespaces"] = dice.sample(("acme", "acme.*", "acme.plant.*", "other"), dice.randint(0, 2))
    return entry


def a_subject(dice: random.Random) -> dict[str, Any]:
    return {"type": "t", "expiry": dice.choice(HOURS)} if dice.random() < 0.3 else {"type": "t"}
