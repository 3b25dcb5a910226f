"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers.mosquitto import Mosquitto
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[Mosquitto]:
    """One broker for all tests that neither stop it nor need a special configuration. Use topics of your own."""
    with Mosquitto.start() as broker:
        yield broker
