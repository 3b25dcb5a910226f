"""Quotas: the rule for each subject, the limits, and counting the use again."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from connectivity.authorization.quotas import MOST_NAMES, Quantity, QuotaHolder, QuotaKey, Quotas
from connectivity.config.quotas import QuotaRule
from tests.support.cpu_budget import at_most

DAY = "2030-01-15"
THINGS: QuotaKey = (QuotaHolder.NAMESPACE, "acme.site", Quantity.THINGS)
EVENTS: QuotaKey = (QuotaHolder.SUBJECT, "device:7", Quantity.EVENTS_PER_DAY)


def uses(quotas: Quotas) -> set[tuple[QuotaKey, int]]:
    return {each for counts in quotas._all for each in counts.used.items()}


def rule(**values: object) -> QuotaRule:
    return QuotaRule.model_validate(values)


def test_the_first_rule_that_names_a_namespace_applies_to_it() -> None:
    quotas = Quotas([rule(namespaces=["acme.*"], things=2), rule(namespaces=["*"], things=1, policies=1)])
    assert quotas.allowed(THINGS) == 2
    assert quotas.allowed((QuotaHolder.NAMESPACE, "acme.site", Quantity.POLICIES)) is None
    assert quotas.allowed((QuotaHolder.NAMESPACE, "other", Quantity.POLICIES)) == 1
    assert quotas.allowed((QuotaHolder.SUBJECT, "acme.site", Quantity.THINGS)) is None


def test_names_without_a_rule_take_a_bounded_amount_of_memory() -> None:
    """A search may name any namespaces."""
    quotas = Quotas([rule(subjects=["device:*"], searches=1)])
    for number in range(MOST_NAMES + 100):
        growth = {(QuotaHolder.NAMESPACE, f"acme.{number}", Quantity.SEARCHES): 1}
        assert quotas.take(growth) is None
        quotas.give_back(growth)
    assert len(quotas._found) == MOST_NAMES
    assert uses(quotas) == set()


def test_each_namespace_that_a_rule_names_has_a_quota_of_its_own() -> None:
    quotas = Quotas([rule(namespaces=["acme.*"], things=1)])
    assert quotas.take({THINGS: 1}, DAY) is None
    assert quotas.take({(QuotaHolder.NAMESPACE, "acme.home", Quantity.THINGS): 1}, DAY) is None


def test_a_growth_beyond_a_quota_is_refused_and_adds_nothing() -> None:
    quotas = Quotas([rule(namespaces=["acme.*"], things=2), rule(subjects=["device:*"], events_per_day=3)])
    assert quotas.take({THINGS: 2, EVENTS: 2}, DAY) is None
    exceeded = quotas.take({EVENTS: 1, THINGS: 1}, DAY)
    assert exceeded is not None
    assert str(exceeded) == "the namespace 'acme.site' uses 2 of its quota things of 2"
    assert quotas.take({EVENTS: 1}, DAY) is None
    exceeded = quotas.take({EVENTS: 1}, DAY)
    assert exceeded is not None
    assert str(exceeded) == "the subject 'device:7' uses 3 of its quota events_per_day of 3"


def test_a_growth_beyond_the_remaining_quota_is_named() -> None:
    """A create adds two events: the thing and its policy."""
    quotas = Quotas([rule(subjects=["device:*"], events_per_day=3)])
    assert quotas.take({EVENTS: 2}, DAY) is None
    message = "the subject 'device:7' uses 2 of its quota events_per_day of 3, and this needs 2 more"
    assert str(quotas.take({EVENTS: 2}, DAY)) == message


def test_less_use_is_always_taken() -> None:
    quotas = Quotas([rule(namespaces=["acme.*"], things=1)])
    quotas.end_count(quotas.counted({THINGS: 5}))
    assert quotas.take({THINGS: -1}, DAY) is None
    assert uses(quotas) == {(THINGS, 4)}


def test_a_quota_per_day_begins_again_with_the_day() -> None:
    quotas = Quotas([rule(subjects=["device:*"], events_per_day=1), rule(namespaces=["*"], things=1)])
    assert quotas.take({EVENTS: 1, THINGS: 1}, DAY) is None
    assert quotas.take({EVENTS: 1}, DAY) is not None
    assert quotas.take({EVENTS: 1}, "2030-01-16") is None
    assert quotas.take({THINGS: 1}, "2030-01-16") is not None


def test_a_count_corrects_the_stored_usage_and_keeps_the_day_and_concurrent_changes() -> None:
    quotas = Quotas([rule(namespaces=["*"], things=10), rule(subjects=["*"], events_per_day=10)])
    quotas.take({THINGS: 4, EVENTS: 4}, DAY)
    quotas.begin_count()
    quotas.take({THINGS: 1, EVENTS: 1}, DAY)
    quotas.end_count(quotas.counted({THINGS: 2}))
    assert uses(quotas) == {(THINGS, 3), (EVENTS, 5)}


def test_a_count_that_fails_changes_nothing() -> None:
    quotas = Quotas([rule(namespaces=["*"], things=10)])
    quotas.take({THINGS: 4}, DAY)
    quotas.begin_count()
    quotas.take({THINGS: 1}, DAY)
    quotas.end_count(None)
    assert uses(quotas) == {(THINGS, 5)}


@pytest.mark.parametrize("is_ended", [False, True])
def test_failed_changes_are_not_subtracted_from_a_count_without_them(*, is_ended: bool) -> None:
    quotas = Quotas([rule(namespaces=["*"], things=10), rule(subjects=["*"], events_per_day=10)])
    quotas.take({THINGS: 4, EVENTS: 4}, DAY)
    before = quotas.begun
    quotas.take({THINGS: 1, EVENTS: 1}, DAY)
    quotas.begin_count()
    during = quotas.begun
    quotas.take({THINGS: 2, EVENTS: 2}, DAY)
    quotas.take({THINGS: 3, EVENTS: 3}, DAY)
    if is_ended:
        quotas.end_count(quotas.counted({THINGS: 4}))
    quotas.give_back({THINGS: 1, EVENTS: 1}, before)
    quotas.give_back({THINGS: 2, EVENTS: 2}, during)
    if not is_ended:
        assert uses(quotas) == {(THINGS, 7), (EVENTS, 7)}
        quotas.end_count(quotas.counted({THINGS: 4}))
    assert uses(quotas) == {(THINGS, 7), (EVENTS, 7)}


def test_names_without_a_quota_are_not_kept() -> None:
    quotas = Quotas([rule(namespaces=["acme.*"], things=10)])
    for number in range(100):
        quotas.take({(QuotaHolder.NAMESPACE, f"n{number}", Quantity.THINGS): 1, EVENTS: 1}, DAY)
    quotas.begin_count()
    quotas.end_count(quotas.counted({(QuotaHolder.NAMESPACE, "other", Quantity.THINGS): 1}))
    assert uses(quotas) == set()


def test_square_brackets_are_parts_of_names() -> None:
    quotas = Quotas([rule(subjects=["ip:[2001:db8::?]"], things=1)])
    assert quotas.allowed((QuotaHolder.SUBJECT, "ip:[2001:db8::1]", Quantity.THINGS)) == 1
    assert quotas.allowed((QuotaHolder.SUBJECT, "ip:2", Quantity.THINGS)) is None


def test_the_usage_of_changes_that_were_not_stored_is_returned() -> None:
    quotas = Quotas([rule(namespaces=["acme.*"], things=1), rule(subjects=["*"], events_per_day=1)])
    assert quotas.take({THINGS: 1, EVENTS: 1}, DAY) is None
    quotas.give_back({THINGS: 1, EVENTS: 1})
    assert quotas.take({THINGS: 1, EVENTS: 1}, DAY) is None
    assert quotas.take({THINGS: 1}, DAY) is not None


def test_names_without_use_are_forgotten_with_the_next_count() -> None:
    quotas = Quotas([rule(namespaces=["*"], things=10)])
    for number in range(100):
        quotas.take({(QuotaHolder.NAMESPACE, f"n{number}", Quantity.THINGS): 1}, DAY)
    quotas.begin_count()
    quotas.end_count(quotas.counted({THINGS: 1}))
    assert uses(quotas) == {(THINGS, 1)}


def test_the_levels_follow_the_use_in_both_directions() -> None:
    quotas = Quotas([rule(namespaces=["*"], things=10)])
    other: QuotaKey = (QuotaHolder.NAMESPACE, "other", Quantity.THINGS)
    kind = QuotaHolder.NAMESPACE, Quantity.THINGS
    quotas.take({THINGS: 9, other: 5})
    assert dict(quotas.levels()) == {kind: (90, 1)}
    assert [str(use) for use in quotas.nearly_used(5)] == ["the namespace 'acme.site' uses 9 of its quota things of 10"]
    quotas.give_back({THINGS: 1})
    assert dict(quotas.levels()) == {kind: (80, 0)}
    assert list(quotas.nearly_used(5)) == []
    quotas.give_back({THINGS: 8})
    assert dict(quotas.levels()) == {kind: (50, 0)}
    quotas.end_count(quotas.counted({THINGS: 30, other: 10}))
    assert dict(quotas.levels()) == {kind: (100, 2)}
    assert len(list(quotas.nearly_used(1))) == 1
    quotas.end_count(quotas.counted({}))
    assert dict(quotas.levels()) == {}


def test_reports_of_a_hundred_thousand_holders_take_no_longer_than_of_one() -> None:
    quotas = Quotas([rule(subjects=["*"], things=100, events_per_day=2)])
    quotas.end_count(
        quotas.counted({(QuotaHolder.SUBJECT, f"d:{n}", Quantity.THINGS): n % 120 for n in range(100_000)})
    )
    with at_most(0.002):
        levels = dict(quotas.levels())
        shown = list(quotas.nearly_used(20))
    assert levels == {(QuotaHolder.SUBJECT, Quantity.THINGS): (100, sum(n % 120 >= 90 for n in range(100_000)))}
    assert len(shown) == 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"things": 1}, "namespaces or subjects, but not both"),
        ({"namespaces": ["a"], "subjects": ["b"], "things": 1}, "namespaces or subjects, but not both"),
        ({"namespaces": ["a"]}, "at least one quota"),
        ({"subjects": ["a"], "bytes": 5}, "use bytes_per_day for subjects"),
        ({"subjects": ["a"], "things": 0}, "greater than or equal to 1"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(values: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        rule(**values)
