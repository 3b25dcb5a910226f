"""Subjects get the same responses in a scenario and in the same scenario with other secrets.

A failure prints the smallest scenario that it finds, and the request. `SEED=…` draws the same scenarios again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import structlog

from connectivity.targets import signal_context
from connectivity.twins import retrieval
from connectivity.twins.access import ThingAccess
from mappings.ids import EntityType, parse_entity_id
from tests.support.dice import SEED, dice
from tests.support.non_interference.comparison import Comparison, random_comparison
from tests.support.non_interference.folded_past import fold_past_searches
from tests.support.non_interference.secrets import KEPT
from tests.support.paths import ROOT

BATCH = 10
"""Scenarios of one test."""
LONG_BATCH = 200
DRAWS = 50
"""The maximum number of draws for a scenario with another one; about one of eighteen has none."""


@pytest.fixture(autouse=True)
def _folded(monkeypatch: pytest.MonkeyPatch) -> None:
    fold_past_searches(monkeypatch)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Disable the log, as thousands of commands are refused here."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


def drawn(number: int) -> Comparison:
    """Return the comparison with this number."""
    comparisons = (random_comparison(dice("non-interference", number, draw)) for draw in range(DRAWS))
    return next(comparison for comparison in comparisons if comparison is not None)


async def assert_alike(numbers: Sequence[int]) -> None:
    for number in numbers:
        comparison = drawn(number)
        if found := await comparison.differences():
            assert comparison.is_fair(), (
                f"scenario {number} of SEED={SEED}: the other scenario shows something else by the rules"
            )
            smallest = await comparison.smallest()
            # One that does not differ again has differed by chance; then the first difference is printed.
            text = smallest.describe(await smallest.differences() or found)
            pytest.fail(f"scenario {number} of SEED={SEED}\n{text}", pytrace=False)


@pytest.mark.parametrize("batch", range(20))
async def test_subjects_learn_nothing_of_unreadable_content(batch: int) -> None:
    await assert_alike(range(batch * BATCH, (batch + 1) * BATCH))


@pytest.mark.soak(shard="permissions")
@pytest.mark.parametrize("batch", range(50))
async def test_subjects_learn_nothing_of_unreadable_content_in_thousands_of_scenarios(batch: int) -> None:
    await assert_alike(range(1_000 + batch * LONG_BATCH, 1_000 + (batch + 1) * LONG_BATCH))


def test_the_other_scenario_shows_the_same_by_the_rules() -> None:
    comparisons = [random_comparison(dice("fair", number), questions=0) for number in range(BATCH)]
    assert all(comparison.is_fair() for comparison in comparisons if comparison is not None)
    assert any(
        pair.one != pair.other for comparison in comparisons if comparison is not None for pair in comparison.pairs
    )


def _leak_events(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(signal_context, "readable", lambda _enforcer, _subjects, _path, value: value)


def _leak_filters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ThingAccess, "may", lambda _self, _path: True)


def _leak_policies(patch: pytest.MonkeyPatch) -> None:
    def whole(snapshot: Any, _subjects: Any, scenario: Any) -> Any:
        entity = parse_entity_id(EntityType.POLICY, snapshot.policy)
        assert entity is not None
        return (found := scenario.snapshot(entity)) and found.state

    patch.setattr(retrieval, "readable_policy", whole)


@pytest.mark.parametrize("leak", [_leak_events, _leak_filters, _leak_policies])
async def test_a_planted_leak_is_found(leak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    leak(monkeypatch)
    for number in range(200):
        comparison = random_comparison(dice("leak", number))
        if comparison is not None and await comparison.differences():
            return
    pytest.fail("found the same in all scenarios, expected the leak to show")


def test_the_security_page_names_everything_that_is_visible_by_design() -> None:
    page = " ".join((ROOT / "docs" / "explanation" / "security.md").read_text().split())
    assert [words for words in KEPT.values() if words not in page] == []
