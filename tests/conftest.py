"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers.kafka import Kafka
from tests.brokers.mosquitto import Certificates, Mosquitto
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[Mosquitto]:
    """One broker for all tests that neither stop it nor need a special configuration. Use topics of your own."""
    with Mosquitto.start() as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One broker for all tests that do not stop it, with users and TLS. Use topics and groups of your own."""
    certificates = Certificates.make(tmp_path_factory.mktemp("kafka"))
    with Kafka.start(users={"ada": "secret"}, tls=certificates) as broker:
        yield broker
