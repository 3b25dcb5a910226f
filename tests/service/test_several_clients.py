"""Several clients, consumers and sources of a connection on real brokers: work is shared in order.

Brokers send the messages of one sender to several consumers, so two of its commands may change places. The order in which
the service receives them is that of the responses about a thing and of its history.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer
from paho.mqtt.client import Client, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.broker_setup import AmqpSetup, BrokerSetup, KafkaSetup, Mqtt5Setup, MqttSetup
from tests.support.brokers import free_port
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.proxy import ProxyThread
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.mqtt import BrokerClient
from tests.support.clients.paho_end import end_client
from tests.support.connection_documents import CONNECTIONS, Reader, added, policy_for, topic, wait_until_open
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq"), pytest.mark.broker("kafka")]

OWNER = "acme:owner"
PAUSES = {"min": "0.1s", "max": "0.5s"}
SETUPS = (
    pytest.param("mosquitto", marks=pytest.mark.soak(shard="brokers")),
    "rabbitmq",
    pytest.param("kafka", marks=pytest.mark.soak(shard="brokers")),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service to which each test adds its connection."""
    with ServiceProcess.start(tmp_path_factory.mktemp("clients"), [], reconnect=PAUSES) as started:
        yield started


@pytest.fixture(params=SETUPS)
def setup(request: pytest.FixtureRequest) -> BrokerSetup:
    return made(request.param, request.getfixturevalue(request.param))


def made(name: str, broker: Mosquitto | RabbitMQ | Kafka) -> BrokerSetup:
    match broker:
        case Mosquitto():
            return Mqtt5Setup(broker)
        case RabbitMQ():
            return AmqpSetup(broker)
        case _:
            return KafkaSetup(broker)


class Work:
    """Commands on several things, and the responses about each in the order of arrival."""

    def __init__(self, requester: BrokerClient, things: int) -> None:
        self.requester = requester
        self.names = [f"lamp-{number}-{uuid4().hex[:8]}" for number in range(things)]
        self.sent = 0
        self.answered: dict[str, list[int]] = defaultdict(list)
        self._open: set[int] = set()
        for name in self.names:
            value = {"_policy": policy_for(OWNER), "attributes": {"n": -1}}
            assert requester.ask_for(topic(name, "commands/create"), value=value)["status"] == 201

    def send(self, rounds: int) -> None:
        """Change each thing so many times, without waiting for answers."""
        for _ in range(rounds):
            for name in self.names:
                number, self.sent = self.sent, self.sent + 1
                self._open.add(number)
                modify = topic(name, "commands/modify")
                headers = {"correlation-id": f"{name}:{number}"}
                self.requester.command(modify, "/attributes/n", number, headers, wait=False)

    def finish(self) -> None:
        """Wait for every answer. One that comes again counts where it came first."""
        while self._open:
            answer = self.requester.next()
            name, _, number = answer["headers"]["correlation-id"].rpartition(":")
            if not name:
                continue  # a command before a cut may be answered again
            assert answer["status"] == 204, answer
            if int(number) in self._open:
                self._open.remove(int(number))
                self.answered[name].append(int(number))

    def check(self, *, is_repeated: bool = False) -> None:
        """The history of each thing holds each change once, in the order of the answers, and without a gap.

        With `is_repeated` it may hold a change again.
        """
        for name in self.names:
            items = self._replayed(name)
            assert [item["revision"] for item in items] == list(range(1, len(items) + 1))
            values = [item["value"] for item in items[1:]]
            assert (list(dict.fromkeys(values)) if is_repeated else values) == self.answered[name]
        assert sorted(chain.from_iterable(self.answered.values())) == list(range(self.sent))

    def _replayed(self, name: str) -> list[dict[str, Any]]:
        """The history of a thing. After a cut, answers to earlier commands may come again in between."""
        reader = Reader(self.requester, name)
        reader.request(1_000_000)
        items: list[dict[str, Any]] = []
        while True:
            message = self.requester.next()
            if message["topic"].endswith("/next"):
                items.append(message["value"]["item"])
            elif message["topic"].endswith("/complete"):
                return items


def connected_clients(service: ServiceProcess, connection_id: str) -> set[int]:
    return {record["client"] for record in of_connection(service, connection_id) if record["event"] == "connected"}


def of_connection(service: ServiceProcess, connection_id: str) -> list[dict[str, Any]]:
    """Return the log records of a connection."""
    return [record for record in service.records() if record.get("connection") == connection_id]


@pytest.mark.parametrize("consumers", [1, 2])
def test_case_10_order_per_entity_is_kept_by_two_clients_with_so_many_consumers(
    setup: BrokerSetup, service: ServiceProcess, consumers: int
) -> None:
    with setup.client("line") as requester:
        document = setup.connection("site", setup.source("line", OWNER, consumerCount=consumers), clientCount=2)
        with added(service, document):
            assert service.status(document["id"]) == {"status": "open", "details": "connected"}
            assert connected_clients(service, document["id"]) == {0, 1}
            wait_until_sync(lambda: consumers_of(setup, document, requester) in (None, 2 * consumers))
            work = Work(requester, 8)
            work.send(25)
            work.finish()
            work.check()


def consumers_of(setup: BrokerSetup, document: dict[str, Any], requester: BrokerClient) -> int | None:
    """Return the broker's number of consumers; None for a broker that does not report it."""
    if isinstance(requester, AmqpClient):
        return requester.consumers()
    if isinstance(setup, KafkaSetup):
        group = setup.broker.admin.describe_consumer_groups([document["id"]])[document["id"]]
        return len(group.result(PATIENCE).members)
    return None


def test_one_of_two_links_is_cut_and_nothing_is_lost_repeated_or_reordered(
    setup: BrokerSetup, service: ServiceProcess
) -> None:
    with ExitStack() as stack:
        cut = cutting(setup, stack)
        requester = stack.enter_context(setup.client("line"))
        document = setup.connection("site", setup.source("line", OWNER, consumerCount=2), clientCount=2)
        stack.enter_context(added(service, document))
        work = Work(requester, 6)
        for _ in range(3):
            wait_until_sync(lambda: service.status(document["id"])["status"] == "open")
            lost = len(losses(service, document["id"]))
            work.send(30)
            cut(document["id"])
            work.send(5)
            wait_until_sync(partial(more_losses, service, document["id"], lost))
        work.finish()
        wait_until_sync(lambda: service.status(document["id"])["status"] == "open")
        work.check()


def losses(service: ServiceProcess, connection_id: str) -> list[dict[str, Any]]:
    return [record for record in of_connection(service, connection_id) if record["event"] == "connection lost"]


def more_losses(service: ServiceProcess, connection_id: str, before: int) -> bool:
    return len(losses(service, connection_id)) > before


def cutting(setup: BrokerSetup, stack: ExitStack) -> Callable[[str], None]:
    """Return a function that cuts one link of two."""
    if isinstance(setup, KafkaSetup):
        return lambda connection_id: take_the_place(setup.broker, connection_id)
    assert isinstance(setup, MqttSetup | AmqpSetup)
    proxy = stack.enter_context(ProxyThread(setup.broker.host, setup.broker.port))
    setup.proxied = proxy.host, proxy.port
    return lambda _: proxy.cut_one()


def take_the_place(broker: Kafka, connection_id: str) -> None:
    """Kafka's links repair cuts by themselves; one is lost when another client uses its name."""
    member = {"group.id": connection_id, "group.instance.id": f"{connection_id}.1.0"}
    strategy = {"partition.assignment.strategy": "cooperative-sticky", "log_level": 0}
    intruder = Consumer({"bootstrap.servers": broker.bootstrap, **member, **strategy, "enable.auto.commit": False})
    joined: list[object] = []
    intruder.subscribe(
        [f"{connection_id.split('-', maxsplit=1)[0]}.line.ask"], on_assign=lambda *_: joined.append(None)
    )
    wait_until_sync(lambda: bool(joined) or bool(intruder.poll(0.1) and False))
    intruder.close()


@pytest.mark.parametrize("broker", [pytest.param("mosquitto", marks=pytest.mark.soak(shard="brokers")), "rabbitmq"])
def test_while_one_link_cannot_be_made_again_the_other_does_the_work(
    broker: str, request: pytest.FixtureRequest, service: ServiceProcess
) -> None:
    setup = made(broker, request.getfixturevalue(broker))
    assert isinstance(setup, MqttSetup | AmqpSetup)
    with ProxyThread(setup.broker.host, setup.broker.port) as proxy, setup.client("line") as requester:
        setup.proxied = proxy.host, proxy.port
        document = setup.connection("site", setup.source("line", OWNER), clientCount=2)
        with added(service, document):
            work = Work(requester, 6)
            reader = Reader(requester, work.names[0])
            proxy.cut_one(refusing=True)
            wait_until_sync(lambda: "(1 of 2 clients connected)" in service.status(document["id"])["details"])
            assert service.metric("connectivity_connection_up", connection=document["id"]) == 0
            # MQTT parts messages among sessions, and the dead client's is kept: its share waits for it.
            if broker == "rabbitmq":
                work.send(30)
                work.finish()
                reader.request(1)
                assert requester.until("next")[-1]["value"]["item"]["revision"] == 1
            proxy.admit()
            wait_until_sync(lambda: service.status(document["id"])["status"] == "open")
            work.send(5)
            work.finish()
            work.check()


# other clients (MQTT: the broker keeps a session for each)


@pytest.mark.parametrize(
    ("kind", "count", "change"),
    [
        pytest.param(Mqtt5Setup, 3, {"clientCount": 2}, id="fewer clients"),
        pytest.param(Mqtt5Setup, 2, {"clientCount": 1}, id="only one client"),
        pytest.param(Mqtt5Setup, 1, {"clientCount": 2}, id="several clients"),
        pytest.param(MqttSetup, 1, {"specificConfig": {"clientId": uuid4().hex}}, id="another client ID"),
    ],
)
def test_no_message_is_lost_when_a_change_of_the_connection_gives_it_other_clients(
    mosquitto: Mosquitto, service: ServiceProcess, kind: type[MqttSetup], count: int, change: dict[str, Any]
) -> None:
    setup = kind(mosquitto)
    with setup.client("line") as requester, ThreadPoolExecutor(1) as executor:
        document = setup.connection("site", setup.source("line", OWNER), clientCount=count)
        with added(service, document):
            work = Work(requester, 4)
            edit = executor.submit(put, service, document | change)
            while not wait([edit], timeout=0.01).done:
                work.send(1)
            wait_until_open(service, document["id"])
            work.send(25)
            work.finish()
            # A message may come through the last subscription and the new one; clients of one group share theirs.
            work.check(is_repeated=count == 1 or change == {"clientCount": 1})


@pytest.mark.parametrize(("kind", "count"), [(MqttSetup, 1), (Mqtt5Setup, 2)])
def test_no_message_is_lost_when_a_connection_uses_another_address_of_its_broker(
    mosquitto: Mosquitto, service: ServiceProcess, kind: type[MqttSetup], count: int
) -> None:
    setup = kind(mosquitto)
    with (
        setup.client("line") as requester,
        ProxyThread(mosquitto.host, mosquitto.port) as proxy,
        ThreadPoolExecutor(1) as executor,
    ):
        document = setup.connection("site", setup.source("line", OWNER), clientCount=count)
        with added(service, document):
            work = Work(requester, 4)
            edit = executor.submit(put, service, document | {"uri": f"tcp://{proxy.host}:{proxy.port}"})
            while not wait([edit], timeout=0.01).done:
                work.send(1)
            wait_until_open(service, document["id"])
            work.send(25)
            work.finish()
            work.check(is_repeated=True)


def test_no_message_is_lost_when_a_connection_has_a_wrong_broker_for_a_while(
    mosquitto: Mosquitto, service: ServiceProcess
) -> None:
    setup = MqttSetup(mosquitto)
    with setup.client("line") as requester:
        document = setup.connection("site", setup.source("line", OWNER))
        with added(service, document):
            work = Work(requester, 2)
            changed = document | {"uri": f"tcp://{mosquitto.host}:{free_port()}"}
            status, answer = service.ask("PUT", f"{CONNECTIONS}/{document['id']}", changed)
            assert status == 504, answer
            work.send(5)
            put(service, document)
            work.finish()
            work.check()


@pytest.mark.parametrize("kind", [MqttSetup, Mqtt5Setup])
def test_no_message_is_lost_when_a_connection_is_closed_and_gets_another_client_id_at_once(
    mosquitto: Mosquitto, service: ServiceProcess, kind: type[MqttSetup]
) -> None:
    setup = kind(mosquitto)
    with setup.client("line") as requester:
        document = setup.connection("site", setup.source("line", OWNER))
        with added(service, document):
            work = Work(requester, 2)
            changed = document | {"specificConfig": {"clientId": uuid4().hex}}
            put(service, changed | {"connectionStatus": "closed"})
            work.send(5)
            put(service, changed)
            work.finish()
            work.check()
            assert not has_session(setup, document["id"])


def test_a_client_with_another_id_does_not_cut_the_publisher_of_the_one_before(
    mosquitto: Mosquitto, service: ServiceProcess
) -> None:
    """Two clients cannot be connected with one client ID. The session of the first one ends all the same."""
    setup = Mqtt5Setup(mosquitto)
    first, second, publisher = (uuid4().hex for _ in range(3))
    options = {"separatePublisherClient": "true", "publisherId": publisher}
    with setup.client("line") as requester:
        document = setup.connection("site", setup.source("line", OWNER), specificConfig=options | {"clientId": first})
        with added(service, document):
            work = Work(requester, 1)
            put(service, document | {"specificConfig": options | {"clientId": second}})
            wait_until_open(service, document["id"])
            work.send(5)
            work.finish()
            work.check()
            events = [record["event"] for record in of_connection(service, document["id"])]
            assert events == ["connected", "connection closed", "connected"]


@pytest.mark.parametrize("kind", [MqttSetup, Mqtt5Setup])
def test_after_a_connection_is_deleted_the_broker_keeps_no_messages_for_it(
    mosquitto: Mosquitto, service: ServiceProcess, kind: type[MqttSetup]
) -> None:
    """A connection that is created later with the same ID gets none of them."""
    setup = kind(mosquitto)
    with setup.client("line") as requester:
        document = setup.connection("site", setup.source("line", OWNER))
        with added(service, document):
            work = Work(requester, 1)
        work.send(5)
        with added(service, document):
            requester.assert_nothing_came(work.names[0])
            assert [item["revision"] for item in Reader(requester, work.names[0]).all()] == [1]


@pytest.mark.parametrize(("kind", "count"), [(MqttSetup, 1), (Mqtt5Setup, 3)])
def test_a_client_of_a_deleted_connection_that_loses_its_link_ends_its_session_on_the_next_one(
    mosquitto: Mosquitto, service: ServiceProcess, kind: type[MqttSetup], count: int
) -> None:
    setup = kind(mosquitto)
    with ProxyThread(mosquitto.host, mosquitto.port) as proxy, ThreadPoolExecutor(1) as executor:
        setup.proxied = proxy.host, proxy.port
        document = setup.connection("site", setup.source("line", OWNER), clientCount=count)
        with added(service, document):
            proxy.stall()
            deletion = executor.submit(service.ask, "DELETE", f"{CONNECTIONS}/{document['id']}")
            wait_until_sync(lambda: of_connection(service, document["id"])[-1]["event"] == "connection closed")
            proxy.cut_one()
            proxy.flow()
            assert deletion.result(PATIENCE)[0] == 204
        names = [document["id"]] if count == 1 else [f"{document['id']}_{number}" for number in range(count)]
        assert not any(has_session(setup, name) for name in names)


def has_session(setup: MqttSetup, client_id: str) -> bool:
    """Return whether the broker keeps a session for a client ID."""
    is_5 = isinstance(setup, Mqtt5Setup)
    version = MQTTv5 if is_5 else MQTTv311
    client = Client(CallbackAPIVersion.VERSION2, client_id, clean_session=None if is_5 else False, protocol=version)
    found = SimpleQueue[bool]()
    client.on_connect = lambda _client, _data, flags, *_: found.put(flags.session_present)
    if is_5:
        client.connect(setup.broker.host, setup.broker.port, clean_start=False)
    else:
        client.connect(setup.broker.host, setup.broker.port)
    client.loop_start()
    try:
        return found.get(timeout=PATIENCE)
    finally:
        end_client(client)


def put(service: ServiceProcess, document: dict[str, Any]) -> None:
    status, answer = service.ask("PUT", f"{CONNECTIONS}/{document['id']}", document)
    assert status in (200, 204), answer


# four sources


@pytest.fixture
def four(setup: BrokerSetup, service: ServiceProcess) -> Iterator[list[BrokerClient]]:
    """Four requesters, each with its own source and reply-target in one connection with several clients."""
    names = ["north", "east", "south", "west"]
    with ExitStack() as stack:
        clients = [stack.enter_context(setup.client(name)) for name in names]
        document = setup.connection("site", *(setup.source(name, OWNER) for name in names), clientCount=2)
        stack.enter_context(added(service, document))
        yield clients


def test_case_2_each_of_four_sources_answers_at_its_own_reply_target(four: list[BrokerClient]) -> None:
    lamp, value = f"lamp-{uuid4().hex[:8]}", {"_policy": policy_for(OWNER)}
    for number, requester in enumerate(four):
        assert requester.ask_for(topic(f"{lamp}-{number}", "commands/create"), value=value)["status"] == 201
    asked = [
        {requester.command(topic(f"{lamp}-{number}", "commands/retrieve"), wait=False) for _ in range(30)}
        for number, requester in enumerate(four)
    ]
    for correlations, requester in zip(asked, four, strict=True):
        answers = [requester.next() for _ in range(30)]
        assert {answer["headers"]["correlation-id"] for answer in answers} == correlations, json.dumps(answers[:1])
    for requester in four:
        for number in range(len(four)):
            requester.assert_nothing_came(f"{lamp}-{number}")


def test_case_10_one_thing_is_changed_through_four_sources_and_its_history_has_one_order(
    four: list[BrokerClient],
) -> None:
    """The answers of each requester follow the order of the history, and together they are the history."""
    first, lamp = four[0], f"lamp-{uuid4().hex[:8]}"
    value = {"_policy": policy_for(OWNER), "attributes": {"n": -1}}
    assert first.ask_for(topic(lamp, "commands/create"), value=value)["status"] == 201
    for number in range(200):
        headers = {"correlation-id": str(number)}
        four[number % 4].command(topic(lamp, "commands/modify"), "/attributes/n", number, headers, wait=False)
    answered = [[int(requester.next()["headers"]["correlation-id"]) for _ in range(50)] for requester in four]
    items = Reader(first, lamp).all()
    values = [item["value"] for item in items[1:]]
    assert sorted(values) == list(range(200))
    for number, own in enumerate(answered):
        assert own == [each for each in values if each % 4 == number]
