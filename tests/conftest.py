"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from tests.brokers.mosquitto import Mosquitto
from tests.clock import Clock

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[Mosquitto]:
    """One broker for all tests that neither stop it nor need a special configuration. Use topics of your own."""
    with Mosquitto.start() as broker:
        yield broker
