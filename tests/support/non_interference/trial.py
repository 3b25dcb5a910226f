"""A comparison of a world with the same world with other secrets, and the smallest world that differs.

trial = random_trial(dice("non-interference", 17))
differences = await trial.differences()
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

from tests.support.non_interference.observer import Inquiry, Learned, observe
from tests.support.non_interference.questions import RandomRequests
from tests.support.non_interference.secrets import Pair, Secrets, looks_alike, pairs, worlds_of
from tests.support.non_interference.worlds import World, a_world, course_of

QUESTIONS = 14
TRIES = 150
"""The maximum number of attempts to find a smaller comparison."""


class Difference(NamedTuple):
    """An observation that only one of the worlds has."""

    question: str
    one: str | None
    other: str | None


@dataclass(frozen=True)
class Trial:
    """Two worlds, and the requests sent in both."""

    world: World
    pairs: Sequence[Pair]
    inquiry: Inquiry

    async def differences(self) -> list[Difference]:
        """Send the requests in both worlds and return the differences."""
        one, other = worlds_of(self.world, self.pairs)
        return compare(await observe(one, self.inquiry), await observe(other, self.inquiry))

    async def smallest(self) -> Trial:
        """Return a smaller trial that differs too: one request, and few steps."""
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
        """Return whether the two worlds should look the same to the subjects."""
        return looks_alike(self.world, self.pairs)

    def _smaller(self) -> Sequence[Trial]:
        asked = self.inquiry
        if len(asked.questions) + len(asked.topics) + len(asked.streamr) + len(asked.rsio) > 1:
            return [
                *(self._asking(Inquiry(questions=[question])) for question in asked.questions),
                *(self._asking(Inquiry(topics=[topics])) for topics in asked.topics),
                *(self._asking(Inquiry(streamr=[name])) for name in asked.streamr),
                *(self._asking(Inquiry(rsio=[name])) for name in asked.rsio),
            ]
        return [self._without(number) for number in reversed(range(len(self.pairs)))]

    def _asking(self, inquiry: Inquiry) -> Trial:
        return replace(self, inquiry=inquiry)

    def _without(self, number: int) -> Trial:
        left = [pair for each, pair in enumerate(self.pairs) if each != number]
        watched = self.world.watched - (number < self.world.watched)
        return replace(self, world=self.world._replace(watched=watched), pairs=left)

    def describe(self, differences: Sequence[Difference]) -> str:
        """Return the trial and its differences as text."""
        lines = [f"{', '.join(self.world.subjects)} must not learn what is written as | in the other world:"]
        for number, (one, other) in enumerate(self.pairs):
            if number == self.world.watched:
                lines.append("  -- they begin to watch --")
            lines.append(f"  {one!r}")
            if other != one:
                lines.append(f"  | {'nothing happens' if other is None else other!r}")
        lines.append(f"asked at {self.world.asked:%H:%M:%S}; topics {self.inquiry.topics}, live subscriptions ")
        lines[-1] += f"{[*self.inquiry.streamr, *self.inquiry.rsio]}"
        for found in differences:
            lines += [found.question, f"  learned {found.one}", f"  |       {found.other}"]
        return "\n".join(lines)


def compare(one: Learned, other: Learned) -> list[Difference]:
    """Return all differences between the observations in two worlds."""
    return [
        Difference(question, a, b) for question in one for a, b in zip_longest(one[question], other[question]) if a != b
    ]


def random_trial(dice: random.Random, questions: int = QUESTIONS) -> Trial | None:
    """Return a random trial, or None if the world has no other one."""
    world = a_world(dice)
    found = pairs(world, dice)
    course = course_of(world.steps)
    if found is None or course is None or not course.moments:
        return None
    return Trial(world, found, RandomRequests(world, Secrets(world, course), dice).inquiry(questions))
