"""A connection whose broker stalls affects no other one, and continues in order when the broker does.

The tests check progress, not times: how much the stalled connection reads before it stops, and that the other one is served
meanwhile.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from connectivity.transports.amqp.consumer import IN_FLIGHT
from tests.support.broker_setup import AmqpSetup, BrokerSetup, KafkaSetup, Mqtt5Setup, MqttSetup
from tests.support.brokers.proxy import ProxyThread
from tests.support.clients.mqtt import BrokerClient
from tests.support.connection_documents import Reader, policy_for, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq"), pytest.mark.broker("kafka")]

OWNER = "acme:owner"
COMMANDS = IN_FLIGHT + 500
ROUND_TRIPS = 50
EVENTS = 500
MOST_MEMORY = 64 << 20
PADDING = "x" * 1000


@pytest.fixture(
    params=[
        pytest.param("mosquitto", marks=pytest.mark.soak(shard="brokers")),
        "rabbitmq",
        pytest.param("kafka", marks=pytest.mark.soak(shard="brokers")),
    ]
)
def stalling(request: pytest.FixtureRequest) -> BrokerSetup:
    """The broker of the connection that is going to stall."""
    broker = request.getfixturevalue(request.param)
    setups = {"mosquitto": Mqtt5Setup, "rabbitmq": AmqpSetup, "kafka": KafkaSetup}
    setup: BrokerSetup = setups[request.param](broker)
    return setup


def proxy_of(setup: BrokerSetup) -> ProxyThread:
    if isinstance(setup, KafkaSetup):
        return ProxyThread(setup.broker.host, setup.broker.proxied_port, at=setup.broker.proxy_port)
    assert isinstance(setup, MqttSetup | AmqpSetup)
    return ProxyThread(setup.broker.host, setup.broker.port)


def counter_of(requester: BrokerClient) -> int:
    answer = requester.ask_for(topic("slow", "commands/retrieve"), "/attributes/n")
    assert answer["status"] == 200, answer
    return int(answer["value"])


@pytest.mark.slow(reason="so many commands are sent that the connection takes no more")
def test_a_reply_broker_that_stalls_stops_its_own_connection_alone(
    stalling: BrokerSetup, mosquitto: Any, tmp_path: Path
) -> None:
    other = MqttSetup(mosquitto)
    with ExitStack() as stack:
        proxy = stack.enter_context(proxy_of(stalling))
        stalling.proxied = proxy.host, proxy.port
        slow = stack.enter_context(stalling.client("slow"))
        quick = stack.enter_context(other.client("quick"))
        documents = [
            stalling.connection("slow", stalling.source("slow", OWNER)),
            other.connection("quick", other.source("quick", OWNER)),
        ]
        settings = {"reconnect": {"min": "0.1s", "max": "0.5s"}}
        service = stack.enter_context(ServiceProcess.start(tmp_path, documents, **settings))
        for name, requester in (("slow", slow), ("quick", quick)):
            value = {"_policy": policy_for(OWNER), "attributes": {"n": 0}}
            assert requester.ask_for(topic(name, "commands/create"), value=value)["status"] == 201
        for number in range(EVENTS):
            quick.command(topic("quick", "commands/modify"), "/attributes/pad", f"{number}{PADDING}", wait=False)
        for _ in range(EVENTS):
            assert quick.next()["status"] in (201, 204)
        reader = Reader(slow, "quick")
        before = psutil.Process(service.pid).memory_info().rss

        # Nothing that the service says reaches this broker, and what the broker says reaches the service.
        proxy.stall(to_client=False)
        reader.request(1_000_000)
        for number in range(1, COMMANDS + 1):
            headers = {"correlation-id": str(number)}
            slow.command(topic("slow", "commands/modify"), "/attributes/n", number, headers, wait=False)
        taken = 0
        for number in range(ROUND_TRIPS):
            quick.ask_for(topic("quick", "commands/modify"), "/attributes/n", number)
            taken = counter_of(quick)
        assert taken <= IN_FLIGHT, "the source takes no more than its window"
        replay = Reader(quick, "quick")
        assert len(replay.all()) == 1 + EVENTS + ROUND_TRIPS
        assert counter_of(quick) <= IN_FLIGHT
        # Messages of the broker for this client would arrive before the one to itself.
        itself = {"to": "itself"}
        slow.assert_next_answers(itself, lambda message: message == itself, to=slow.answers)
        assert psutil.Process(service.pid).memory_info().rss - before < MOST_MEMORY

        proxy.flow()
        answers, revisions = in_order_of_first_arrival(slow)
        assert answers == list(range(1, COMMANDS + 1))
        assert revisions == list(range(1, EVENTS + 2))
        wait_until_sync(lambda: service.status(documents[0]["id"])["status"] == "open")
        assert counter_of(quick) == COMMANDS


def in_order_of_first_arrival(requester: BrokerClient) -> tuple[list[int], list[int]]:
    """Return the answered commands and the replayed revisions; unconfirmed ones may come again."""
    answers: dict[int, None] = {}
    revisions: dict[int, None] = {}
    is_complete = False
    while len(answers) < COMMANDS or not is_complete:
        message = requester.next()
        if "status" in message:
            answers.setdefault(int(message["headers"]["correlation-id"]))
        elif message["topic"].endswith("/next"):
            revisions.setdefault(message["value"]["item"]["revision"])
        else:
            is_complete = is_complete or message["topic"].endswith("/complete")
    return list(answers), list(revisions)
