"""Fixtures that tests of the whole service share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kill_series.trial_broker import BrokerOfKind, KillSeriesBroker


@pytest.fixture
def killed_broker(request: pytest.FixtureRequest) -> BrokerOfKind:
    """Gives a broker of this kind that a trial may kill."""
    return lambda kind: _of(kind, request.getfixturevalue(f"own_{kind.server}"))


@pytest.fixture
def shared_broker(request: pytest.FixtureRequest) -> BrokerOfKind:
    """Gives a broker of this kind that goes on."""
    return lambda kind: _of(kind, request.getfixturevalue(kind.server))


def _of(kind: Callable[..., KillSeriesBroker], broker: object) -> KillSeriesBroker:
    return kind(broker)
