"""Which rules apply to a creation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from connectivity.security.creation import UNRESTRICTED, CreationRule, CreationRules


def test_every_subject_may_create_everything_by_default() -> None:
    assert UNRESTRICTED.may_create("thing", "acme", [])
    assert UNRESTRICTED.may_create("policy", "", ["edge:a"])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ((["thing"], [], []), True),
        ((["policy"], [], []), False),
        (([], ["acme.plant"], []), True),
        (([], ["acme"], []), False),
        (([], ["acme.*"], []), True),
        (([], ["acme.plan?"], []), True),
        (([], ["other", "*.plant"], []), True),
        (([], ["[a]cme.plant"], []), False),
        (([], [], ["edge:b"]), True),
        (([], [], ["edge:?"]), True),
        (([], [], ["edge"]), False),
        ((["thing"], ["acme.*"], ["other:*"]), False),
    ],
)
def test_a_rule_applies_if_each_of_its_lists_matches(
    rule: tuple[Sequence[str], Sequence[str], Sequence[str]], expected: bool
) -> None:
    found = CreationRules((CreationRule.of(*rule),))
    assert found.may_create("thing", "acme.plant", ["edge:a", "edge:b"]) is expected


def test_a_revoke_wins_over_every_grant() -> None:
    rules = CreationRules(revokes=(CreationRule.of([], ["locked"], []),))
    assert rules.may_create("thing", "open", ["edge:a"])
    assert not rules.may_create("thing", "locked", ["edge:a"])
    assert not CreationRules(grants=()).may_create("thing", "open", ["edge:a"])


def test_without_subjects_only_rules_for_everybody_apply() -> None:
    assert not CreationRules((CreationRule.of([], [], ["*"]),)).may_create("thing", "acme", [])
