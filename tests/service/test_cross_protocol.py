"""One thing and one stream in all wire protocols over each broker.

They are changed, followed and replayed through Ditto, Streamr and reactive-streams-io, and published to a target. Case
numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from mappings.reactive_streams_io.events import Completed
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.client_setups import OPERATOR, ClientSetup
from tests.support.clients.mqtt import BrokerClient
from tests.support.clients.reactive_streams_io import Client
from tests.support.connection_documents import EVERYTHING, READ, Reader, policy_for, topic
from tests.support.in_process.streamr import KEY, definition, policy
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

pytestmark = [
    *(pytest.mark.broker(name) for name in ("mosquitto", "rabbitmq", "kafka")),
    pytest.mark.usefixtures("service"),
]

KINDS = ("mqtt", "amqp-091", "kafka")
READER, GATEWAY = "acme:reader", "acme:gateway"
CHANGES = 20
MESSAGES = 12
MONTH = 30 * 86_400


class Stage(NamedTuple):
    """Two connections to one broker: one for Streamr clients, the other for reactive-streams-io clients."""

    streamr: ClientSetup
    rsio: ClientSetup

    def documents(self) -> list[dict[str, Any]]:
        streams = {f"tank-{self.rsio.kind}": {"policyId": "acme.site:tanks"}}
        options = {"replyAddressPattern": self.rsio.pattern, "streams": streams}
        return [
            self.streamr.document(
                {"payloadMapping": ["tanks"], "authorizationContext": [GATEWAY]},
                mappingDefinitions=definition(replyAddressPattern=self.streamr.pattern),
            ),
            self.rsio.document(
                {"payloadMapping": ["rsio"], "authorizationContext": [READER]},
                mappingDefinitions={"rsio": {"mappingEngine": "ReactiveStreamsIO", "options": options}},
            ),
            # A target does not receive the events of commands of its own connection.
            self.streamr.audience("_/_/things/twin/events"),
        ]


class ProtocolClients(NamedTuple):
    """The clients: two of the Ditto protocol, one of each other protocol, and the receiver of a target."""

    writer: BrokerClient
    reader: BrokerClient
    pump: BrokerClient
    watch: Client
    audience: BrokerClient


@pytest.fixture(scope="module")
def stages(mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka) -> dict[str, Stage]:
    made = {kind: Stage(*(ClientSetup(kind, mosquitto, rabbitmq, kafka) for _ in range(2))) for kind in KINDS}
    for stage in made.values():
        for place in stage:
            place.prepare()
    return made


@pytest.fixture(scope="module")
def service(stages: dict[str, Stage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for all brokers, with the policy of the streams."""
    documents = [document for stage in stages.values() for document in stage.documents()]
    kept = {"lake": {"retention": {"default": "forever", "acme.site": "30d"}}, "spark": {"mode": "external"}}
    terms = policy()
    terms["entries"]["reader"] = {"subjects": {READER: {"type": "test"}}, "resources": {"stream:/": READ}}
    with ServiceProcess.start(tmp_path_factory.mktemp("cross"), documents, **kept) as running:
        with stages["mqtt"].streamr.operator() as operator:
            answer = operator.ask_for(topic("tanks", "commands/create", group="policies"), value=terms)
            assert answer["status"] == 201, answer
        yield running


@pytest.fixture(params=KINDS)
def clients(request: pytest.FixtureRequest, stages: dict[str, Stage]) -> Iterator[ProtocolClients]:
    streamr, rsio = stages[request.param]
    with ExitStack() as stack:
        watch = Client(request.param, rsio.client("one"))
        stack.callback(watch.close)
        writer, reader, pump, audience = (
            stack.enter_context(requester)
            for requester in (streamr.operator(), rsio.operator(), streamr.client("one"), streamr.listener())
        )
        yield ProtocolClients(writer, reader, pump, watch, audience)


def send_request(requester: BrokerClient, type: str, stream: str, **more: Any) -> None:
    requester.send({"type": type, "stream": stream, "authKey": KEY, **more}, wait=False)


def modify(name: str, path: str, value: Any) -> dict[str, Any]:
    return {"topic": topic(name, "commands/modify"), "headers": {}, "path": path, "value": value}


def resent(pump: BrokerClient, stream: str, number: int) -> list[Any]:
    """Resend all messages of a stream; return the `number` frames."""
    send_request(pump, "resend", stream, sub="all", resend_all=True)
    first, *again, last = (pump.next() for _ in range(number + 2))
    assert (first[1], last[1]) == (4, 5)
    return list(again)


def next_event(name: str, audience: BrokerClient) -> dict[str, Any]:
    """Return the next event of this thing; a queue holds those of others too."""
    event: dict[str, Any] = audience.next()
    while f"/{name}/" not in event["topic"]:
        event = audience.next()
    return event


def plain(item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event that every protocol has."""
    return {name: item[name] for name in ("topic", "path", "value", "revision", "timestamp") if name in item}


def events(raw: Sequence[bytes]) -> list[dict[str, Any]]:
    return [json.loads(each) for each in raw]


def contents(frames: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the contents of Streamr messages about events."""
    return [plain(json.loads(frame[3][8])) for frame in frames]


def without_ttl(message: list[Any]) -> list[Any]:
    """A message without what changes with time."""
    return [item for index, item in enumerate(message) if index != 4]


def test_one_thing_has_the_same_events_in_the_same_order_in_all_protocols(clients: ProtocolClients) -> None:
    """Changed by two clients, followed live, replayed in three protocols; then READ is revoked (X06)."""
    writer, reader, pump, watch, audience = clients
    name = f"pump-{secrets.token_hex(3)}"
    stream = f"things/acme.site:{name}"
    terms = policy_for(OPERATOR, acme_reader={"thing:/": READ}, streamr_pump={"thing:/": EVERYTHING})
    created = writer.ask_for(topic(name, "commands/create"), value={"_policy": terms, "attributes": {"n": 0}})
    assert created["status"] == 201, created
    newest = 1 + 2 * CHANGES

    send_request(pump, "subscribe", stream)
    assert pump.next() == [0, 2, "", {"stream": stream, "partition": 0}]
    from_now = watch.subscribe(f"{stream}/events", 10_000)
    followed = watch.subscribe(f"{stream}/history?from=1&follow=true", 7)
    watch.until(lambda: len(watch.elements(followed)) == 1)
    for number in range(1, CHANGES + 1):
        writer.command(topic(name, "commands/modify"), "/attributes/n", {"by": "writer", "n": number}, wait=False)
        send_request(
            pump, "publish", stream, msg=json.dumps(modify(name, "/attributes/n", {"by": "pump", "n": number}))
        )
    assert {writer.next()["status"] for _ in range(CHANGES)} == {204}
    # The pump gets no other response to its changes.
    live: list[Any] = [pump.next() for _ in range(2 * CHANGES)]

    items = [plain(item) for item in Reader(reader, name).all()]
    assert [item["revision"] for item in items] == list(range(1, newest + 1))
    for by in ("writer", "pump"):
        assert [each["value"]["n"] for each in items[1:] if each["value"]["by"] == by] == list(range(1, CHANGES + 1))

    assert [frame[:3] for frame in live] == [[0, 0, ""]] * len(live)
    assert [frame[3][5:7] for frame in live] == [[offset, offset - 1] for offset in range(2, newest + 1)]
    assert contents(live) == items[1:]
    watch.until(lambda: len(watch.elements(from_now)) == 2 * CHANGES and len(watch.elements(followed)) == 7)
    watch.endpoint.session.request(followed, 10_000)
    watch.say()
    watch.until(lambda: len(watch.elements(followed)) == newest)
    assert events(watch.elements(from_now)) == items[1:]
    assert events(watch.elements(followed)) == items
    published = [next_event(name, audience) for _ in range(newest)]
    assert [plain(event) for event in published][1:] == items[1:]

    again = resent(pump, stream, newest)
    assert contents(again) == items
    assert [without_ttl(frame[3]) for frame in again[1:]] == [without_ttl(frame[3]) for frame in live]
    assert all(MONTH - 2 * PATIENCE < frame[3][4] <= MONTH for frame in (*live, *again)), (
        "what retention leaves of them"
    )
    replayed = watch.subscribe(f"{stream}/history", 10_000)
    watch.until(lambda: watch.has(Completed(replayed)))
    assert events(watch.elements(replayed)) == items

    for entry, resources in (("READER0", {"thing:/attributes": READ}), ("READER1", {"thing:/attributes": EVERYTHING})):
        path = f"/entries/{entry}/resources"
        assert writer.ask_for(topic(name, "commands/modify", "policies"), path, resources)["status"] == 204
    words = f"Not authorized to subscribe to stream {stream} and partition 0"
    refusal: Any = pump.next()
    assert (refusal[1], refusal[3]["error"], refusal[3]["status"]) == (7, words, 403)
    watch.until(lambda: None not in (watch.failure(from_now), watch.failure(followed)))
    assert {str(watch.failure(each))[:3] for each in (from_now, followed)} == {"404"}
    send_request(pump, "publish", stream, msg=json.dumps(modify(name, "/attributes/n", "unseen")))
    send_request(pump, "publish", stream, msg=json.dumps(modify(name, "/definition", "a:b:1")))
    refusal = pump.next()
    assert (refusal[1], refusal[3]["code"], refusal[3]["stream"]) == (7, "things:definition.notmodifiable", stream)
    assert next_event(name, audience)["value"] == "unseen"
    nothing = {"type": "unsubscribe", "stream": "nothing", "authKey": KEY}
    pump.assert_next_answers(nothing, lambda frame: frame[3]["stream"] == "nothing", wait=False)
    refused = watch.subscribe(f"{stream}/history", 1)
    watch.until(lambda: watch.failure(refused) is not None)
    assert len(watch.elements(from_now)) == 2 * CHANGES
    assert len(watch.elements(followed)) == newest


def test_one_stream_has_the_same_messages_in_the_same_order_in_both_protocols_that_have_streams(
    clients: ProtocolClients,
) -> None:
    """Published through Streamr, followed in both protocols; then resent in both."""
    pump, watch = clients.pump, clients.watch
    stream = f"tank-{watch.kind}"
    send_request(pump, "subscribe", stream)
    assert pump.next() == [0, 2, "", {"stream": stream, "partition": 0}]
    from_now = watch.subscribe(f"streams/{stream}/0", 10_000)
    # Responses are in the order of requests.
    nothing = watch.subscribe(f"streams/{stream}/0?resend_all=true&follow=false", 1)
    watch.until(lambda: watch.has(Completed(nothing)))
    for number in range(1, MESSAGES + 1):
        send_request(pump, "publish", stream, msg=json.dumps({"n": number}))
    live: list[Any] = [pump.next() for _ in range(MESSAGES)]
    messages = [without_ttl(frame[3]) for frame in live]
    assert [json.loads(message[-1]) for message in messages] == [{"n": number} for number in range(1, MESSAGES + 1)]
    watch.until(lambda: len(watch.elements(from_now)) == MESSAGES)
    replayed = watch.subscribe(f"streams/{stream}/0?resend_all=true&follow=false", 10_000)
    watch.until(lambda: watch.has(Completed(replayed)))
    for raw in (watch.elements(from_now), watch.elements(replayed)):
        assert [without_ttl(json.loads(each)) for each in raw] == messages
    assert [without_ttl(frame[3]) for frame in resent(pump, stream, MESSAGES)] == messages
