"""The effective entries of random policies, against a slow reading of Ditto's documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectivity.authorization.policy_imports import PolicySize, effective, effective_entries
from tests.support.dice import dice, examples
from tests.support.oracles.permissions import Policy, resolved
from tests.support.random_policies import MORE_IDS, a_policy

SAMPLES = examples(10_000)


def comparable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry without the order of permissions and patterns."""
    statements = {
        path: {effect: sorted(set(permissions)) for effect, permissions in each.items()}
        for path, each in entry["resources"].items()
    }
    return {
        "subjects": dict(entry["subjects"]),
        "resources": statements,
        "namespaces": sorted(set(entry.get("namespaces", ()))),
        "importable": entry["importable"],
        "allowedAdditions": sorted(entry["allowedAdditions"]) if "allowedAdditions" in entry else None,
        "references": entry.get("references"),
    }


def test_effective_entries_agree_with_a_slow_reading_of_the_documentation() -> None:
    """Up to six policies import one another, in circles too, and their entries refer to one another."""
    random_source = dice("effective entries")
    seen = dict.fromkeys(("imported", "transitive", "merged", "limited"), 0)
    for _ in range(SAMPLES):
        alive = [id for id in MORE_IDS if id != "acme:missing"][: random_source.randint(1, 6)]
        ids = [*alive, "acme:missing"]
        policies: dict[str, Policy] = {id: a_policy(random_source, id, ids) for id in alive}
        for id, policy in policies.items():
            size = PolicySize()
            found = effective_entries(policy, policies.get, size)
            if size.is_too_large:
                continue
            expected = [(label, comparable(entry)) for label, entry in resolved(policy, policies)]
            assert [(each.label, comparable(each.entry)) for each in found] == expected, (id, policies)
            seen["imported"] += any(len(each.path) == 2 for each in found)
            seen["transitive"] += any(len(each.path) > 2 for each in found)
            seen["merged"] += any(len(each.sources) > 2 for each in found)
            seen["limited"] += any(
                each.sources[1:] and len(each.path) == 1 and set(own["subjects"]) - set(each.entry["subjects"])
                for each in found
                for own in [policy["entries"].get(each.path[0], {"subjects": ()})]
            )
    assert min(seen.values()) > SAMPLES // 100, seen


def test_the_sources_of_an_entry_are_all_that_its_references_reach() -> None:
    """A subject that cannot read one of them must not import it into another policy."""

    def entry(**more: Any) -> dict[str, Any]:
        return {"subjects": {}, "resources": {}, "importable": "implicit", **more}

    policies: dict[str, Policy] = {
        "a:a": {
            "policyId": "a:a",
            "imports": {"a:b": {"entries": [], "transitiveImports": ["a:c"]}},
            "entries": {"X": entry(references=[{"import": "a:b", "entry": "X"}])},
        },
        "a:b": {
            "policyId": "a:b",
            "imports": {"a:c": {"entries": ["Z"]}},
            "entries": {
                "X": entry(references=[{"entry": "Y"}, {"import": "a:c", "entry": "Z"}]),
                "Y": entry(importable="explicit"),
            },
        },
        "a:c": {"policyId": "a:c", "imports": {}, "entries": {"Z": entry(importable="explicit")}},
    }
    found = {each.label: each.sources for each in effective_entries(policies["a:a"], policies.get)}
    imported = (("a:b", "X"), ("a:b", "Y"), ("a:c", "Z"))
    assert found == {"X": (("a:a", "X"), *imported), "imported-a:b-X": imported}


def test_imported_entries_whose_labels_are_the_same_text_both_apply() -> None:
    def policy(id: str, label: str, *imports: str) -> Policy:
        entry = {"subjects": {id: {}}, "resources": {}, "importable": "implicit"}
        return {"policyId": id, "imports": {each: {"entries": []} for each in imports}, "entries": {label: entry}}

    policies = {"a:b": policy("a:b", "c-d"), "a:b-c": policy("a:b-c", "d"), "a:a": policy("a:a", "X", "a:b", "a:b-c")}
    found, _ = effective(policies["a:a"], policies.get)
    assert [list(entry["subjects"]) for entry in found["entries"].values()] == [["a:a"], ["a:b"], ["a:b-c"]]
