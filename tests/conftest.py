"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from tests.brokers.kafka import Kafka
from tests.brokers.mosquitto import Certificates, Mosquitto
from tests.brokers.rabbitmq import RabbitMQ
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


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """One broker for all tests that neither stop it nor need a special configuration. Use queues of your own.

    Besides `/` it has the virtual host `fleet`, and besides its own a user `stranger` who may come in and do nothing.
    Its certificate is for `localhost`.
    """
    certificates = Certificates.make(tmp_path_factory.mktemp("rabbitmq"), "localhost")
    with RabbitMQ.start(users={"stranger": "known"}, vhosts=["fleet"], tls=certificates) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One broker for all tests that do not stop it, with users and TLS. Use topics and groups of your own."""
    certificates = Certificates.make(tmp_path_factory.mktemp("kafka"))
    with Kafka.start(users={"ada": "secret"}, tls=certificates) as broker:
        yield broker
