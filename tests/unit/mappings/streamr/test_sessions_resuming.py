"""The positions at which live subscriptions continue after a restart."""

from __future__ import annotations

import pytest

from mappings.streamr.sessions import resumed_from


@pytest.mark.parametrize(
    ("last", "missed", "most", "after"),
    [(7, 3, 1000, 7), (7, 1000, 1000, 7), (7, 1001, 1000, None), (7, 0, 0, 7)],
)
def test_case_b10_a_subscription_catches_up_on_missed_messages_up_to_the_limit(
    last: int, missed: int, most: int, after: int | None
) -> None:
    assert resumed_from(last, missed, most) == after
