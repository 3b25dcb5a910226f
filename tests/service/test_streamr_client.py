"""The example client of Streamr with a real broker: it misses no message, and ends even after a cut."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import yaml

from examples.streamr_client import CONTENT, OFFSET, Client, Reader
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.connection_documents import client, connection, source
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

STREAM = "tanks"
EVERYTHING = {"grant": ["READ", "WRITE"], "revoke": []}


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    """A broker that tests may kill."""
    with Mosquitto.start() as own:
        yield own


@pytest.fixture(scope="module")
def service(broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with the example connection, and a policy with all permissions for every client."""
    example = yaml.safe_load((ROOT / "examples" / "connections" / "streams.yaml").read_text(encoding="utf-8"))
    documents = [
        example | {"uri": f"tcp://{broker.host}:{broker.port}"},
        connection(broker, source("setup", "acme:operator")),
    ]
    entries = {
        "operator": {"subjects": {"acme:operator": {"type": "test"}}, "resources": {"policy:/": EVERYTHING}},
        "everybody": {"subjects": {"streamr:anonymous": {"type": "test"}}, "resources": {"stream:/": EVERYTHING}},
    }
    reconnect = {"min": "0.1s", "max": "0.5s"}
    with ServiceProcess.start(tmp_path_factory.mktemp("client"), documents, reconnect=reconnect) as running:
        setup = client(broker, "setup")
        try:
            value = {"policyId": "acme.plant:tanks", "entries": entries}
            answer = setup.ask_for("acme.plant/tanks/policies/commands/create", value=value)
        finally:
            setup.close()
        assert answer["status"] == 201, answer
        yield running


def at(broker: Mosquitto, name: str) -> Client:
    return Client(broker.host, broker.port, requests="streamr/requests", responses=f"streamr/answers/{name}")


@contextmanager
def following(session: Client, reader: Reader, on_message: Callable[[int, str], object]) -> Iterator[None]:
    """Return a thread that follows a stream, and passes on offset and content of each message.

    It ends with the message `"end"`.
    """

    def follow() -> None:
        messages = session.follow(reader)
        for message in messages:
            if message[CONTENT] == '"end"':
                break
            on_message(message[OFFSET], message[CONTENT])
        messages.close()

    thread = threading.Thread(target=follow)
    thread.start()
    yield
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_reader_misses_no_message_while_the_broker_is_down(broker: Mosquitto, service: ServiceProcess) -> None:
    """Messages that others publish meanwhile come once and in order when the broker is back."""
    received: list[str] = []
    follower, writer = at(broker, "follower"), at(broker, "writer")
    try:
        writer.publish(STREAM, 0)
        with following(
            follower, Reader(STREAM, first_resend={"resend_last": 9}), lambda _, content: received.append(content)
        ):
            wait_until_sync(lambda: received == ["0"])
            broker.kill()
            wait_until_sync(lambda: service.status("streams")["status"] != "open")
            broker.start_again()
            wait_until_sync(lambda: service.status("streams")["status"] == "open")
            writer.close()
            writer = at(broker, "writer-again")
            for n in (1, 2, 3):
                writer.publish(STREAM, n)
            wait_until_sync(lambda: received == ["0", "1", "2", "3"])
            writer.publish(STREAM, "end")
    finally:
        follower.close()
        writer.close()


def test_a_client_that_is_cut_off_leaves_by_its_last_will(broker: Mosquitto, service: ServiceProcess) -> None:
    words = [
        sys.executable,
        "-m",
        "examples.streamr_client",
        STREAM,
        "--last",
        "1",
        "--answers",
        "streamr/answers/gone",
    ]
    place = ["--host", broker.host, "--port", str(broker.port)]
    with subprocess.Popen([*words, *place], cwd=ROOT, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        writer = at(broker, "somebody")
        try:
            writer.publish(STREAM, {"level": 1})
        finally:
            writer.close()
        assert program.stdout.readline()
        program.kill()

    def has_left() -> bool:
        ended = [each for each in service.records() if each["event"] == "session ended"]
        return any(each["address"] == "streamr/answers/gone" for each in ended)

    wait_until_sync(has_left)
