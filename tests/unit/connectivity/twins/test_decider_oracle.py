"""Permissions over several policies agree with a simple rule, for thousands of random policies."""

from __future__ import annotations

from connectivity.twins.context import CurrentStateLookup
from mappings.ids import EntityId
from spark_store.records import Snapshot
from tests.support.dice import dice, examples
from tests.support.oracles.permissions import (
    a_value,
    flattened,
    reference_has,
    reference_partial,
    reference_root,
    reference_unrestricted,
    segments,
)
from tests.support.random_policies import IDS, KEYS, NAMESPACES, NOWS, SUBJECTS, a_policy
from tests.support.twin_harness import policy

SAMPLES, QUESTIONS = examples(1_500), 6


def test_enforced_permissions_agree_with_the_reference_rule() -> None:
    """With imports, also circular ones, references, namespaces, expiries, several subjects and times."""
    random_source = dice("decide")
    for _ in range(SAMPLES):
        states = {id: a_policy(random_source, id) for id in IDS[:3]}
        snapshots: dict[EntityId, Snapshot] = {
            policy(id): Snapshot(policy(id), 1, "", "", state, id) for id, state in states.items()
        }
        clock = [NOWS[0]]
        lookup = CurrentStateLookup(snapshots.get, lambda clock=clock: clock[0])  # type: ignore[misc]
        for number in range(QUESTIONS):
            if number == QUESTIONS // 2:
                # A policy changes, so those that import it must be updated.
                changed = random_source.choice(IDS[:3])
                states[changed] = a_policy(random_source, changed)
                snapshots[policy(changed)] = Snapshot(policy(changed), 2, "", "", states[changed], changed)
            clock[0] = max(clock[0], random_source.choice(NOWS))
            namespace, id = random_source.choice(NAMESPACES), random_source.choice(IDS[:3])
            enforcer = lookup.enforcer(id, namespace)
            assert enforcer is not None
            flat = flattened(id, states, clock[0], namespace)
            subjects = random_source.sample(SUBJECTS, random_source.randint(0, 3))
            path = "thing:/" + "/".join(random_source.choices(KEYS, k=random_source.randint(0, 3)))
            about = (states, id, namespace, clock, subjects, path)
            for permission in ("READ", "WRITE"):
                question, facts = (subjects, permission, path), (flat, subjects, permission, segments(path))
                assert enforcer.has(*question) == reference_has(*facts), about
                assert enforcer.unrestricted(*question) == reference_unrestricted(*facts), about
                assert enforcer.partial(*question) == reference_partial(*facts), about
            thing = {"thingId": "a:b", "attributes": a_value(random_source, KEYS), "x": a_value(random_source, KEYS)}
            assert enforcer.view(thing, "thing:/", subjects) == reference_root(flat, subjects, thing), about
