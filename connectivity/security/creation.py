"""Which subjects may create things and policies in which namespaces.

As in Eclipse Ditto, a creation needs a rule that grants it, and none that revokes it. A rule applies if each of its lists is
empty or has an entry that matches; among several subjects one is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import Final, NamedTuple, Self


class NamePatterns:
    """Names with `*` for any characters and `?` for one; without any, all names."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        # Square brackets have no meaning here.
        found = [translate(pattern.replace("[", "[[]")) for pattern in patterns]
        self._expression = re.compile("|".join(found)) if found else None

    def match_any(self, names: Iterable[str]) -> bool:
        """Whether one of the names matches."""
        expression = self._expression
        return expression is None or any(expression.match(name) for name in names)


class CreationRule(NamedTuple):
    """A rule: types of entities (without any, all), namespaces and subjects."""

    types: frozenset[str] = frozenset()
    namespaces: NamePatterns = NamePatterns()
    subjects: NamePatterns = NamePatterns()

    @classmethod
    def of(cls, types: Iterable[str], namespaces: Iterable[str], subjects: Iterable[str]) -> Self:
        return cls(frozenset(types), NamePatterns(namespaces), NamePatterns(subjects))

    def applies(self, type: str, namespace: str, subjects: Sequence[str]) -> bool:
        """Whether the rule is about such a creation."""
        is_type = not self.types or type in self.types
        return is_type and self.namespaces.match_any([namespace]) and self.subjects.match_any(subjects)


class CreationRules(NamedTuple):
    """All rules."""

    grants: tuple[CreationRule, ...] = (CreationRule(),)
    revokes: tuple[CreationRule, ...] = ()

    def may_create(self, type: str, namespace: str, subjects: Sequence[str]) -> bool:
        """Whether the subjects may create a `thing` or `policy` in a namespace."""
        return any(rule.applies(type, namespace, subjects) for rule in self.grants) and not any(
            rule.applies(type, namespace, subjects) for rule in self.revokes
        )


UNRESTRICTED: Final = CreationRules()
"""Everybody may create everything."""
