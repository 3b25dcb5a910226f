"""Streamr over each broker: one conversation of two clients, in order, each at its own address.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest

from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.client_setups import KINDS, ClientSetup, prepared
from tests.support.clients.mqtt import BrokerClient
from tests.support.connection_documents import topic
from tests.support.in_process.streamr import (
    KEY,
    definition,
    policy,
    publish,
    resend,
    subscribe,
    subscribed,
    unsubscribe,
)
from tests.support.service_process import ServiceProcess

pytestmark = [pytest.mark.broker(name) for name in ("mosquitto", "rabbitmq", "kafka")]


class Client:
    """A Streamr client over a broker: sends requests, receives frames."""

    correlated: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "mqtt-5": lambda text: {"CorrelationData": text.encode()},
        "amqp-091": lambda text: {"correlation_id": text},
    }

    def __init__(self, kind: str, requester: BrokerClient) -> None:
        self._kind, self._client = kind, requester

    def send(self, *requests: Any, correlation_id: str | None = None, answer_at: str | None = None) -> None:
        for request in requests:
            payload = request if isinstance(request, bytes) else json.dumps(request).encode()
            self._client.send(payload, **self._around(correlation_id, answer_at))

    def _around(self, correlation_id: str | None, answer_at: str | None) -> dict[str, Any]:
        address = answer_at or self._client.answers
        match self._kind:
            case "mqtt-5":
                given: dict[str, Any] = {"ResponseTopic": address}
                return given | ({"CorrelationData": correlation_id.encode()} if correlation_id else {})
            case "amqp-091":
                given = {"reply_to": address}
                return given | ({"correlation_id": correlation_id} if correlation_id else {})
            case "kafka":
                headers = [("reply-to", address)]
                return {"headers": headers + ([("correlation-id", correlation_id)] if correlation_id else [])}
        return {}

    def receive(self, number: int) -> list[Any]:
        """The next frames."""
        return [self._client.next() for _ in range(number)]

    def assert_no_more_frames(self) -> None:
        """Check that no frame came before the response to a new request."""
        request, around = {"type": "unsubscribe", "stream": "nothing"}, self._around(None, None)
        self._client.assert_next_answers(request, lambda frame: frame[3]["stream"] == "nothing", **around)

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def places(mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka) -> dict[str, ClientSetup]:
    return prepared(mosquitto, rabbitmq, kafka)


@pytest.fixture(scope="module")
def service(places: dict[str, ClientSetup], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for all brokers, with the policy of the streams."""
    documents = [
        place.document({"payloadMapping": ["tanks"]}, mappingDefinitions=definition(replyAddressPattern=place.pattern))
        for place in places.values()
    ]
    with ServiceProcess.start(tmp_path_factory.mktemp("streamr"), documents) as running:
        with places["mqtt"].operator() as operator:
            answer = operator.ask_for(topic("tanks", "commands/create", group="policies"), value=policy())
            assert answer["status"] == 201, answer
        yield running


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("service")
def test_two_clients_publish_follow_and_ask_again_over_each_broker(places: dict[str, ClientSetup], kind: str) -> None:
    """Cases S01 to S08, R01, R07, R19, P10, P18, X01, B01, B05, B07, B12 and B13.

    Also the order of all frames in one session.
    """
    place = places[kind]
    stream = f"tank-{kind}"
    with ExitStack() as stack:
        one, two = (Client(place.kind, place.client(name)) for name in ("one", "two"))
        stack.callback(one.close)
        stack.callback(two.close)
        one.send(subscribe(stream=stream), subscribe(stream=stream))
        assert one.receive(2) == [subscribed(stream)] * 2
        two.send(subscribe(stream=stream), *(publish(json.dumps(n), stream=stream) for n in range(1, 4)))
        assert two.receive(1) == [subscribed(stream)]
        received = one.receive(3)
        assert received == two.receive(3)
        assert [[*frame[:3], *frame[3][:3], *frame[3][4:]] for frame in received] == [
            [0, 0, "", 28, stream, 0, 0, n, n - 1 or None, 27, str(n)] for n in range(1, 4)
        ]
        one.send(resend("x", stream=stream, resend_from=2, resend_to=3), b"not json", publish(key=None, stream=stream))
        frames = one.receive(6)
        about = {"stream": stream, "partition": 0, "sub": "x"}
        answers = [frame for frame in frames if frame[1] != 7]
        assert [frame[1] for frame in answers] == [4, 1, 1, 5]
        assert answers[0][3] == answers[3][3] == about
        assert [frame[3][5:7] for frame in answers[1:3]] == [[2, 1], [3, 2]]
        assert [frame[3]["status"] for frame in frames if frame[1] == 7] == [400, 403]
        if kind != "mqtt":
            for _ in range(2):
                one.send(publish('"once"', stream=stream), correlation_id="c-1")
            assert [frame[3][8] for frame in two.receive(1)] == one.receive(1)[0][3][8:]
            one.send(subscribe(stream=stream), answer_at=place.address("one", "elsewhere"))
        two.send(unsubscribe(stream=stream), publish('"last"', stream=stream))
        assert two.receive(1) == [[0, 3, "", {"stream": stream, "partition": 0}]]
        two.assert_no_more_frames()
        assert one.receive(1)[0][3][8] == '"last"'
        one.send({"type": "disconnect"}, publish('"discarded"', stream=stream))
        one.assert_no_more_frames()
        assert KEY not in str(frames)


def test_case_b10_messages_published_while_the_service_is_down_arrive_in_order_over_each_broker(
    places: dict[str, ClientSetup], service: ServiceProcess
) -> None:
    """Without a resend request: clients do not notice a restart."""
    with ExitStack() as stack:
        clients: dict[str, Client] = {}
        for kind, place in places.items():
            clients[kind] = one = Client(kind, place.client("one"))
            stack.callback(one.close)
            one.send(subscribe(stream=f"tank-{kind}"))
            assert one.receive(1) == [subscribed(f"tank-{kind}")]
        service.kill()
        for kind, one in clients.items():
            one.send(*(publish(json.dumps(f"meanwhile {n}"), stream=f"tank-{kind}") for n in range(3)))
        service.start_again()
        for kind, one in clients.items():
            received: list[Any] = []
            while len(received) < 3:
                # Kafka delivers uncommitted records again, so such requests are answered again.
                (frame,) = one.receive(1)
                assert frame[1] == 0 or kind == "kafka", frame
                received += [frame[3]] if frame[1] == 0 else []
            assert [message[8] for message in received] == [f'"meanwhile {n}"' for n in range(3)]
            assert [message[6] for message in received[1:]] == [message[5] for message in received[:2]]
            one.send({"type": "disconnect"})
