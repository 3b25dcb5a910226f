"""Fixtures that all tests share, and what ends a test that hangs."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clock import Clock

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

_words = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # The words of a test are caught while it runs; where it hangs is said where they are not.
    config.stash[_words] = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ else 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """A test has `faulthandler_timeout` seconds. pytest forgets them where one fails; what is left behind may hang too."""
    if seconds := float(item.config.getini("faulthandler_timeout")):
        faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_words])
    return (yield)


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
