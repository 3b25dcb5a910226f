"""reactive-streams-io over each broker: two clients read one thing at their own pace, in two sessions.

Case numbers are those of the cases for reactive-streams-io.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mappings.reactive_streams_io.endpoint import Endpoint, EndpointRole
from mappings.reactive_streams_io.events import Closed, Completed, SessionOpened, StreamAccepted, StreamFailed
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.client_setups import KINDS, OPERATOR, ClientSetup, prepared
from tests.support.clients.reactive_streams_io import Client
from tests.support.connection_documents import topic
from tests.support.in_process.service import policy
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

pytestmark = [pytest.mark.broker(name) for name in ("mosquitto", "rabbitmq", "kafka")]


@pytest.fixture(scope="module")
def places(mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka) -> dict[str, ClientSetup]:
    return prepared(mosquitto, rabbitmq, kafka)


def document(place: ClientSetup) -> dict[str, Any]:
    options = {"tck": True, "replyAddressPattern": place.pattern}
    mapping = {"rsio": {"mappingEngine": "ReactiveStreamsIO", "options": options}}
    return place.document({"payloadMapping": ["rsio"]}, mappingDefinitions=mapping)


@pytest.fixture(scope="module")
def service(places: dict[str, ClientSetup], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for all brokers."""
    documents = [document(place) for place in places.values()]
    with ServiceProcess.start(tmp_path_factory.mktemp("rsio"), documents) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("service")
def test_two_clients_read_a_history_and_live_events_over_each_broker(places: dict[str, ClientSetup], kind: str) -> None:
    """Cases B01, B02, B03, B04, B11, D01, D02, D07, D11, N01, N04 and G01, from end to end."""
    place = places[kind]
    name = f"lamp-{kind}"
    history = f"things/acme.site:{name}/history"
    with ExitStack() as stack:
        operator = stack.enter_context(place.operator())
        created = operator.ask_for(topic(name, "commands/create"), value={"_policy": policy(OPERATOR)})
        assert created["status"] == 201, created
        for number in range(2, 8):
            operator.ask_for(topic(name, "commands/modify"), "/attributes/n", number)
        one, two = (Client(kind, place.client(each)) for each in ("one", "two"))
        stack.callback(one.close)
        stack.callback(two.close)

        slow = one.endpoint.subscribe(history, 2)
        nothing = one.endpoint.subscribe("nope", 1)
        one.say()
        one.until(lambda: len(one.elements(slow)) == 2)
        assert any(isinstance(event, SessionOpened) for event in one.reported)
        assert one.has(StreamAccepted(nothing, 0))
        assert [event.reason[:3] for event in one.reported if isinstance(event, StreamFailed)] == ["404"]

        live = two.endpoint.subscribe(f"{history}?from=6&follow=true", 100)
        packed = two.endpoint.subscribe("tck/fixed?n=5000&size=16", 5000)
        two.say()
        two.until(lambda: two.has(Completed(packed)) and len(two.elements(live)) == 2)
        assert [int.from_bytes(each) for each in two.elements(packed)] == list(range(1, 5001))
        operator.ask_for(topic(name, "commands/modify"), "/attributes/n", 8)
        two.until(lambda: len(two.elements(live)) == 3)
        assert two.revisions(live) == [6, 7, 8]

        one.endpoint.session.request(slow, 3)
        one.say()
        one.until(lambda: len(one.elements(slow)) == 5)
        two.endpoint.session.cancel(live)
        again = two.endpoint.subscribe(f"{history}?from=8", 9)
        two.say()
        two.until(lambda: two.has(Completed(again)))
        assert two.revisions(live) == [6, 7, 8]

        one.endpoint.session.request(slow, 9)
        one.say()
        one.until(lambda: one.has(Completed(slow)))
        assert one.revisions(slow) == list(range(1, 8))
        one.endpoint.close(time.monotonic())
        one.say()
        one.until(lambda: any(isinstance(event, Closed) for event in one.reported))
        one.endpoint = Endpoint(EndpointRole.CLIENT, time.monotonic(), has_messages=True)
        one.reported.clear()
        one.send(bytes.fromhex("12 01 01"))
        one.until(lambda: bool(one.reported))
        assert one.reported == [Closed("protocol error: no session")]
        two.send(bytes.fromhex("12"))
        two.until(lambda: any(isinstance(event, Closed) for event in two.reported))


def test_case_g02_a_service_that_stops_says_goodbye_and_receives_one(
    mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka, tmp_path: Path
) -> None:
    kinds = ("mqtt-5", "amqp-091")
    places = {kind: place for kind, place in prepared(mosquitto, rabbitmq, kafka).items() if kind in kinds}
    with (
        ServiceProcess.start(tmp_path, [document(place) for place in places.values()]) as running,
        ExitStack() as stack,
    ):
        clients = [Client(kind, place.client("one")) for kind, place in places.items()]
        for client in clients:
            stack.callback(client.close)
            stream = client.endpoint.subscribe("tck/never", 1)
            client.say()
            client.until(lambda client=client, stream=stream: client.has(StreamAccepted(stream, 0)))  # type: ignore[misc]
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(running.stop)
            for client in clients:
                client.until(lambda client=client: client.has(Closed("shutdown")))  # type: ignore[misc]
            code, seconds = stopping.result(PATIENCE)
    assert code == 0
    assert seconds < 10
