"""The effective part of a merge patch, and the time to find it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.twins.things import minimize
from spark_store.history.replay import DeletePatternRefused, merge
from tests.support.cpu_budget import at_most
from tests.support.twin_harness import twin_harness


def test_a_value_whose_key_a_pattern_deletes_first_is_kept_whole() -> None:
    lamps = {"lamp1": {"on": True, "hue": 3}, "lamp2": 5, "fan": 1}
    patch = {"{{ ~lamp.*~ }}": None, "lamp1": {"on": True}, "lamp2": 5, "fan": 1}
    changes = minimize(lamps, patch)
    assert changes == {"{{ ~lamp.*~ }}": None, "lamp1": {"on": True}, "lamp2": 5}
    assert merge(lamps, changes) == merge(lamps, patch) == {"lamp1": {"on": True}, "lamp2": 5, "fan": 1}


@pytest.mark.parametrize(
    ("path", "patch", "event"),
    [
        ("/attributes", {"new": {"on": 1, "old": None}}, {"new": {"on": 1}}),
        ("/attributes", {"new": {"{{ ~o.*~ }}": None, "in": {"old": None}}}, {"new": {"in": {}}}),
        ("/attributes", {"lamp": {"on": 1, "old": None}}, {"lamp": {"on": 1}}),
        ("/attributes/new", {"on": 1, "old": None}, {"on": 1}),
        ("/attributes/lamp", {"on": 1, "old": None}, {"on": 1}),
        ("/attributes", {"{{ ~lamp~ }}": None, "lamp": {"old": None}}, {"{{ ~lamp~ }}": None, "lamp": {}}),
    ],
)
def test_a_minimized_merge_deletes_nothing_in_a_new_object(path: str, patch: Any, event: Any) -> None:
    harness = twin_harness(attributes={"lamp": 5})
    decision = harness.send("merge", path, patch, if_equal="skip-minimizing-merge")
    assert json.loads(decision.events[0].value or b"") == event


def test_all_patterns_of_a_patch_have_one_budget() -> None:
    """At any depth."""
    registries = {str(number): {"lamp": 1} for number in range(1000)}
    assert minimize(registries, {"1": {"{{ ~lamp1~ }}": None, "{{ ~lamp~ }}": None}}) == {"1": {"{{ ~lamp~ }}": None}}
    with pytest.raises(DeletePatternRefused, match="expected fewer patterns"):
        minimize(registries, {number: {f"{{{{ ~lamp{number}~ }}}}": None} for number in registries})
    with pytest.raises(DeletePatternRefused, match="expected fewer patterns"):
        minimize({}, {number: {f"{{{{ ~lamp{number}~ }}}}": None} for number in registries})


@pytest.mark.parametrize("path", ["/", "/attributes"])
def test_a_merge_with_a_thousand_patterns_is_refused_soon(path: str) -> None:
    harness = twin_harness(attributes={"a" * 100: 1})
    patch = {f"{{{{ ~.*{number}.*x~ }}}}": None for number in range(1000)}
    with at_most(0.5):
        assert harness.refused("merge", path, patch) == (400, "things:merge.invalid")
