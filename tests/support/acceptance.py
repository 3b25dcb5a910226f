"""A minimum of accepted examples for property tests that skip refused examples.

    @accepts(at_least=5)
    @given(st.text())
    def test_any_text_is_read_or_refused(text: str) -> None:
        try:
            found = read(text)
        except Refused:
            return
        accepted()
        assert ...

Without a minimum, such a test also passes if every example is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

_counts: list[int] = []
"""The number of accepted examples of each running test, the innermost last."""


def accepted() -> None:
    """Count an accepted example of the running test, if it has a minimum."""
    if _counts:
        _counts[-1] += 1


def accepts(*, at_least: int) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make a property test fail if it counts fewer than `at_least` accepted examples.

    Put it outside of `given`. The number must hold for the fifth of the examples that `make test` draws, with any seed.
    """

    def decorate(test: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(test)
        def counting(*args: P.args, **kwargs: P.kwargs) -> None:
            _counts.append(0)
            try:
                test(*args, **kwargs)
                check(_counts[-1], at_least)
            finally:
                _counts.pop()

        return counting

    return decorate


def check(count: int, at_least: int) -> None:
    assert count >= at_least, f"{count} examples were accepted, expected at least {at_least}"
