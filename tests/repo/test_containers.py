"""The brokers of tests run in Docker if an engine answers.

Here the engine is a fake one, so this is tested on every machine: it records the requests, and listens at the brokers'
ports.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import pytest
from testcontainers.core import container as testcontainers

from tests.support.brokers import BrokerFailed, is_listening, kafka, mosquitto, rabbitmq
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ


class Private(Protocol):
    """Behaviors of all private brokers."""

    host: str
    port: int

    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def start_again(self) -> None: ...
    def log(self) -> str: ...
    def close(self) -> None: ...


class FakeContainer:
    """A container of the fake engine; `asked` has its requests in order."""

    made: ClassVar[list[FakeContainer]] = []
    answers_with: ClassVar[int] = 0
    """The exit code of each command."""

    def __init__(self, image: str) -> None:
        self.image, self.command = image, ""
        self.status = "created"
        self.requests: list[str] = []
        self.volumes: dict[str, tuple[str, str]] = {}
        self.environment: dict[str, str] = {}
        self.options: dict[str, Any] = {}
        self.ports: dict[int, int] = {}
        self._listeners: list[socket.socket] = []
        self.made.append(self)

    def with_command(self, command: str) -> Self:
        self.command = command
        return self

    def with_volume_mapping(self, host: str, place: str, mode: str = "ro") -> Self:
        self.volumes[host] = (place, mode)
        return self

    def with_env(self, name: str, value: str) -> Self:
        self.environment[name] = value
        return self

    def with_kwargs(self, **options: Any) -> Self:
        self.options |= options
        return self

    def with_bind_ports(self, inside: int, outside: int) -> Self:
        self.ports[inside] = outside
        return self

    def get_container_host_ip(self) -> str:
        return "127.0.0.1"

    def get_wrapped_container(self) -> Self:
        return self

    def start(self) -> None:
        self.requests.append("start")
        self.status = "running"
        self._listeners = [socket.create_server(("127.0.0.1", port)) for port in self.ports.values()]

    def stop(self, timeout: int | None = None) -> None:
        """With a timeout an engine stops; without one the library removes."""
        self.requests.append("remove" if timeout is None else "stop")
        self._end()

    def kill(self) -> None:
        self.requests.append("kill")
        self._end()

    def _end(self) -> None:
        self.status = "exited"
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    def wait(self) -> None:
        assert self.status == "exited"

    def reload(self) -> None:
        """The status is always fresh here."""

    def get_logs(self) -> tuple[bytes, bytes]:
        return b"out\n", b"err\n"

    def exec(self, command: list[str]) -> tuple[int, bytes]:
        self.requests.append(" ".join(command))
        return self.answers_with, b"output"


class FakeAdmin:
    """Kafka's administration, which finds nothing."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def list_topics(self, timeout: float) -> None:
        """Return no topics."""


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeContainer]]:
    for module in (kafka, mosquitto, rabbitmq):
        monkeypatch.setattr(module, "docker_answers", lambda: True)
    monkeypatch.setattr(testcontainers, "DockerContainer", FakeContainer)
    monkeypatch.setattr(kafka, "AdminClient", FakeAdmin)
    monkeypatch.setattr(FakeContainer, "made", [])
    yield FakeContainer.made
    for container in FakeContainer.made:
        container._end()


STARTS: list[tuple[Callable[[], Private], str]] = [
    (Mosquitto.start, mosquitto.IMAGE),
    (RabbitMQ.start, rabbitmq.IMAGE),
    (Kafka.start, kafka.IMAGE),
]
brokers = pytest.mark.parametrize(("start", "image"), STARTS, ids=["mosquitto", "rabbitmq", "kafka"])


@brokers
def test_the_image_runs_with_our_folder_and_its_ports_outside(
    start: Callable[[], Private], image: str, engine: list[FakeContainer]
) -> None:
    broker = start()
    (container,) = engine
    assert container.image == image
    assert container.ports[broker.port] == broker.port
    ((folder, (place, _)),) = container.volumes.items()
    assert folder == place, "one configuration serves inside and outside"
    texts = [file.read_text(encoding="utf-8") for file in Path(folder).iterdir() if file.is_file()]
    assert any(str(broker.port) in text for text in texts)
    # From outside a listener of the container's own loopback could not be reached.
    assert [text for text in texts if f"127.0.0.1:{broker.port}" in text and "advertised" not in text] == []
    assert f"{folder}/" in container.command + "".join(container.environment.values())
    broker.close()
    assert not Path(folder).exists()


@brokers
def test_it_is_ended_and_started_again_as_the_same_container(
    start: Callable[[], Private], image: str, engine: list[FakeContainer]
) -> None:
    broker = start()
    broker.stop()
    assert not is_listening(broker.host, broker.port)
    broker.start_again()
    assert is_listening(broker.host, broker.port)
    broker.kill()
    broker.start_again()
    assert broker.log() == "out\nerr\n"
    broker.close()
    broker.close()
    (container,) = engine
    assert container.requests == ["start", "stop", "start", "kill", "start", "kill", "remove"]


@brokers
def test_one_that_ends_while_it_starts_is_quoted(
    start: Callable[[], Private], image: str, engine: list[FakeContainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeContainer, "status", property(lambda _: "exited", lambda *_: None), raising=False)
    with pytest.raises(BrokerFailed, match=r"ended while it was starting:\nout\nerr"):
        start()


def test_certificates_are_seen_inside(tmp_path: Path, engine: list[FakeContainer]) -> None:
    certificates = Certificates.make(tmp_path)
    starts: list[Callable[..., Mosquitto | RabbitMQ | Kafka]] = [Mosquitto.start, RabbitMQ.start, Kafka.start]
    for start in starts:
        broker = start(tls=certificates)
        container = engine[-1]
        assert container.ports[broker.tls_port] == broker.tls_port
        (folder,) = container.volumes
        # All files that the configuration refers to are in the mounted folder.
        texts = [file.read_text(encoding="utf-8") for file in Path(folder).iterdir() if file.suffix != ".pem"]
        assert not any(str(tmp_path) in text for text in texts)
        broker.close()


def test_rabbitmq_is_reported_in_its_container(engine: list[FakeContainer], monkeypatch: pytest.MonkeyPatch) -> None:
    with RabbitMQ.start() as broker:
        assert broker.control("list_queues") == "output"
        monkeypatch.setattr(FakeContainer, "answers_with", 64)
        with pytest.raises(BrokerFailed, match="rabbitmqctl --quiet list_queues: output"):
            broker.control("list_queues")
    assert "rabbitmqctl --quiet list_queues" in engine[0].requests
