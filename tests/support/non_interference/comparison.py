"""A comparison of a scenario with the same one with other secrets, and the smallest difference.

comparison = random_comparison(dice("non-interference", 17))
differences = await comparison.differences()
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

from tests.support.non_interference.observer import Inquiry, Learned, observe
from tests.support.non_interference.questions import RandomRequests
from tests.support.non_interference.scenarios import Scenario, a_scenario, course_of
from tests.support.non_interference.secrets import Pair, Secrets, looks_alike, pairs, scenarios_of

QUESTIONS = 14
TRIES = 150
"""The maximum number of attempts to find a smaller comparison."""


class Difference(NamedTuple):
    """An observation that only one of the scenarios has."""

    question: str
    one: str | None
    other: str | None


@dataclass(frozen=True)
class Comparison:
    """Two scenarios, and the requests sent in both."""

    scenario: Scenario
    pairs: Sequence[Pair]
    inquiry: Inquiry

    async def differences(self) -> list[Difference]:
        """Send the requests in both scenarios and return the differences."""
        one, other = scenarios_of(self.scenario, self.pairs)
        return compare(await observe(one, self.inquiry), await observe(other, self.inquiry))

    async def smallest(self) -> Comparison:
        """Return a smaller comparison that differs too: one request, and few steps."""
        found, tries = self, 0
        while tries < TRIES:
            for smaller in found._smaller():
                tries += 1
                if smaller.is_fair() and await smaller.differences():
                    found = smaller
                    break
                if tries >= TRIES:
                    break
            else:
                break
        return found

    def is_fair(self) -> bool:
        """Return whether the two scenarios should look the same to the subjects."""
        return looks_alike(self.scenario, self.pairs)

    def _smaller(self) -> Sequence[Comparison]:
        asked = self.inquiry
        if len(asked.questions) + len(asked.topics) + len(asked.streamr) + len(asked.rsio) > 1:
            return [
                *(self._asking(Inquiry(questions=[question])) for question in asked.questions),
                *(self._asking(Inquiry(topics=[topics])) for topics in asked.topics),
                *(self._asking(Inquiry(streamr=[name])) for name in asked.streamr),
                *(self._asking(Inquiry(rsio=[name])) for name in asked.rsio),
            ]
        return [self._without(number) for number in reversed(range(len(self.pairs)))]

    def _asking(self, inquiry: Inquiry) -> Comparison:
        return replace(self, inquiry=inquiry)

    def _without(self, number: int) -> Comparison:
        left = [pair for each, pair in enumerate(self.pairs) if each != number]
        watched = self.scenario.watched - (number < self.scenario.watched)
        return replace(self, scenario=self.scenario._replace(watched=watched), pairs=left)

    def describe(self, differences: Sequence[Difference]) -> str:
        """Return the comparison and its differences as text."""
        lines = [f"{', '.join(self.scenario.subjects)} must not learn what is written as | in the other scenario:"]
        for number, (one, other) in enumerate(self.pairs):
            if number == self.scenario.watched:
                lines.append("  -- they begin to watch --")
            lines.append(f"  {one!r}")
            if other != one:
                lines.append(f"  | {'nothing happens' if other is None else other!r}")
        lines.append(f"asked at {self.scenario.asked:%H:%M:%S}; topics {self.inquiry.topics}, live subscriptions ")
        lines[-1] += f"{[*self.inquiry.streamr, *self.inquiry.rsio]}"
        for found in differences:
            lines += [found.question, f"  learned {found.one}", f"  |       {found.other}"]
        return "\n".join(lines)


def compare(one: Learned, other: Learned) -> list[Difference]:
    """Return all differences between the observations in two scenarios."""
    return [
        Difference(question, a, b) for question in one for a, b in zip_longest(one[question], other[question]) if a != b
    ]


def random_comparison(dice: random.Random, questions: int = QUESTIONS) -> Comparison | None:
    """Return a random comparison, or None if the scenario has no other one."""
    scenario = a_scenario(dice)
    found = pairs(scenario, dice)
    course = course_of(scenario.steps)
    if found is None or course is None or not course.moments:
        return None
    return Comparison(scenario, found, RandomRequests(scenario, Secrets(scenario, course), dice).inquiry(questions))
