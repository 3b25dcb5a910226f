"""A floor for property tests that end early where an example is refused: how many examples have to be accepted.

    @accepts(at_least=5)
    @given(st.text())
    def test_any_text_is_read_or_refused(text: str) -> None:
        try:
            found = read(text)
        except Refused:
            return
        accepted()
        assert ...

Without a floor such a test also passes where everything is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

_counts: list[int] = []
"""How many examples have been accepted so far, by the tests that are running."""


def accepted() -> None:
    """Count one acceptance for the test that is running, if it has a floor."""
    if _counts:
        _counts[-1] += 1


def accepts(*, at_least: int) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorate a property test, outside of `given`: it fails when fewer than `at_least` acceptances were counted.

    The number has to hold for the fifth of the examples that `make test` draws, whatever the seed.
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
