"""Brokers that all workers of a test run share, from their first use to the end of the run.

The controller process of the run owns them. A worker connects to it, requests the brokers of its tests, and gets
objects with the brokers' addresses, which cannot stop them. Each worker has its own Mosquitto, which starts in a tenth
of a second, so that tests of different workers can use the same topics.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Protocol

from tests.support.brokers import BrokerFailed
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ

Broker = Mosquitto | RabbitMQ | Kafka

ODD_LOGIN, ODD_PASSWORD = "grün %2F", "p%40@:/#?"
"""A user of RabbitMQ whose name and password have characters that URLs reserve."""


def _mosquitto(_folder: Path, _workers: int) -> Mosquitto:
    return Mosquitto.start()


def _rabbitmq(folder: Path, _workers: int) -> RabbitMQ:
    """Start one with the virtual hosts `fleet` and `50%2F/7`, users without permissions, and TLS."""
    return RabbitMQ.start(
        users={"stranger": "known", ODD_LOGIN: ODD_PASSWORD},
        vhosts=["fleet", "50%2F/7"],
        tls=Certificates.make(folder, "localhost"),
    )


def _kafka(folder: Path, workers: int) -> Kafka:
    return Kafka.start(users={"ada": "secret"}, tls=Certificates.make(folder), proxies=workers)


STARTS: Mapping[str, Callable[[Path, int], Broker]] = {"mosquitto": _mosquitto, "rabbitmq": _rabbitmq, "kafka": _kafka}


PER_WORKER = {"mosquitto"}
"""The brokers of which each worker has its own."""


class Source(Protocol):
    """A source of brokers for the tests of a worker."""

    def prepare(self, names: Iterable[str]) -> None:
        """Start these brokers in the background."""

    def get(self, name: str) -> Broker:
        """Return a running broker. Raises BrokerFailed with a message of one line."""

    def close(self) -> None:
        """Stop the brokers that this side has started."""


class SharedBrokers:
    """Owns the brokers for a number of workers: each is started at most once, in a thread of its own."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._folder = Path(tempfile.mkdtemp(prefix="shared-brokers-"))
        self._lock = threading.Lock()
        self._starts: dict[str, threading.Thread] = {}
        self._brokers: dict[str, Broker] = {}
        self._failures: dict[str, str] = {}

    def prepare(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                if name not in self._starts:
                    self._starts[name] = threading.Thread(target=self._start, args=(name,), daemon=True)
                    self._starts[name].start()

    def _start(self, name: str) -> None:
        folder = self._folder / name
        folder.mkdir()
        try:
            self._brokers[name] = STARTS[name](folder, self._workers)
        except Exception as error:  # only tests that need this broker fail
            self._failures[name] = (str(error) or repr(error)).splitlines()[0]

    def get(self, name: str) -> Broker:
        self.prepare([name])
        self._starts[name].join()
        if name in self._failures:
            raise BrokerFailed(f"needs {name}, which could not be started: {self._failures[name]}")
        return self._brokers[name]

    def close(self) -> None:
        """Stop all of them."""
        for start in self._starts.values():
            start.join()
        for broker in self._brokers.values():
            broker.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class BrokerServer:
    """Sends the addresses of shared brokers to the workers, each over its own connection."""

    def __init__(self, brokers: SharedBrokers) -> None:
        self._brokers = brokers
        self.key = os.urandom(16)
        self._listener = Listener(family="AF_UNIX", authkey=self.key)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return str(self._listener.address)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                wanted: str | list[str] = connection.recv()
                if isinstance(wanted, list):
                    self._brokers.prepare(wanted)
                    continue
                try:
                    connection.send(self._brokers.get(wanted))
                except BrokerFailed as error:
                    connection.send(str(error))

    def close(self) -> None:
        self._listener.close()


class RemoteBrokers:
    """The worker's side of `BrokerServer`."""

    def __init__(self, address: str, key: bytes, worker: int) -> None:
        self._connection, self._worker = Client(address, family="AF_UNIX", authkey=key), worker
        self._own = SharedBrokers()

    def prepare(self, names: Iterable[str]) -> None:
        self._connection.send([name for name in names if name not in PER_WORKER])

    def get(self, name: str) -> Broker:
        if name in PER_WORKER:
            return self._own.get(name)
        self._connection.send(name)
        got: Broker | str = self._connection.recv()
        if isinstance(got, str):
            raise BrokerFailed(got)
        if isinstance(got, Kafka):
            got.use_proxy(self._worker)
        return got

    def close(self) -> None:
        """Stop the brokers that are not shared."""
        self._own.close()
