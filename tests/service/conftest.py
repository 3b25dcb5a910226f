"""Fixtures that tests of the whole service share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kill_series.series_broker import BrokerOfKind, KillSeriesBroker


@pytest.fixture
def killed_broker(request: pytest.FixtureRequest) -> BrokerOfKind:
    """Return a function that returns a broker of a kind that a test may kill."""
    return lambda kind: _of(kind, request.getfixturevalue(f"own_{kind.server}"))


@pytest.fixture
def shared_broker(request: pytest.FixtureRequest) -> BrokerOfKind:
    """Return a function that returns a shared broker of a kind, which no test may kill."""
    return lambda kind: _of(kind, request.getfixturevalue(kind.server))


def _of(kind: Callable[..., KillSeriesBroker], broker: object) -> KillSeriesBroker:
    return kind(broker)
