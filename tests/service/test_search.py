"""Searches over each broker: the cases of searches in one conversation, and a client's own writes.

Case numbers are those of the search cases. Cases that a broker cannot produce (a failing store, the time of a query) are
tested without one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from tests.support.broker_setup import AmqpSetup, BrokerSetup, KafkaSetup, Mqtt5Setup, MqttSetup
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.mqtt import BrokerClient
from tests.support.connection_documents import READ, policy_for
from tests.support.random_names import KEYS, in_path
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq"), pytest.mark.broker("kafka")]

OWNER, GUEST = "acme:owner", "acme:guest"
KINDS = ("mqtt", "mqtt-5", "amqp-091", "kafka")
NO_SECRET = {"thing:/": READ, "thing:/attributes/secret": {"grant": [], "revoke": ["READ"]}}
TOPIC = "_/_/things/twin/search"
OPTION, RQL = "thing-search:search.option.invalid", "rql.expression.invalid"


class Searcher:
    """One client of searches; `namespace` is where its things are."""

    def __init__(self, requester: BrokerClient, namespace: str) -> None:
        self.requester, self.namespace = requester, namespace
        self.received: list[dict[str, Any]] = []

    def send(self, action: str, value: Any = None, correlation: str = "req", **envelope: Any) -> None:
        self.requester.command(f"{TOPIC}/{action}", value=value, headers={"correlation-id": correlation}, **envelope)

    def subscribe(self, filter: str | None = None, options: str | None = None, **more: Any) -> str:
        fields = {"fields": more.pop("fields")} if "fields" in more else {}
        value = {"namespaces": [self.namespace], "filter": filter, "options": options, **more}
        correlation = f"sub-{len(self.received)}"
        self.send("subscribe", value, correlation, **fields)
        created = self.wait(lambda each: each["headers"]["correlation-id"] == correlation)
        assert created["topic"] == f"{TOPIC}/created"
        key: str = created["value"]["subscriptionId"]
        return key

    def wait(self, wanted: Any) -> dict[str, Any]:
        """The next message that is wanted; all are kept."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.received.append(self.requester.next())
            if wanted(self.received[-1]):
                return self.received[-1]
        raise AssertionError(f"nothing of that in {self.received}")

    def request(self, key: str, demand: Any = 100) -> list[list[dict[str, Any]]]:
        """The pages until the end, or until there are so many more."""
        before = len(self.pages(key))
        self.send("request", {"subscriptionId": key, "demand": demand})
        self.wait(lambda _: self.end(key) is not None or len(self.pages(key)) == before + demand)
        return self.pages(key)

    def found(self, filter: str | None = None, options: str | None = "size(200)", **more: Any) -> list[str]:
        """Search; return the ends of the IDs of the things found."""
        key = self.subscribe(filter, options, **more)
        pages = self.request(key)
        assert self.end(key) == "complete", self.failure(key)
        return [thing["thingId"].partition(":")[2] for page in pages for thing in page]

    def fails(self, key: str, demand: Any = 1) -> tuple[int, str]:
        self.send("request", {"subscriptionId": key, "demand": demand})
        self.wait(lambda each: each["topic"].endswith("/failed"))
        error = self.failure(key)
        return error["status"], error["error"]

    def about(self, key: str) -> list[dict[str, Any]]:
        return [each for each in self.received if (each.get("value") or {}).get("subscriptionId") == key]

    def messages(self, key: str) -> list[str]:
        return [each["topic"].rpartition("/")[2] for each in self.about(key)]

    def pages(self, key: str) -> list[list[dict[str, Any]]]:
        return [each["value"]["items"] for each in self.about(key) if "items" in each["value"]]

    def end(self, key: str) -> str | None:
        return next((word for word in self.messages(key) if word in ("complete", "failed")), None)

    def failure(self, key: str) -> dict[str, Any]:
        errors: list[dict[str, Any]] = [each["value"]["error"] for each in self.about(key) if "error" in each["value"]]
        return errors[-1]


class Searchers(NamedTuple):
    """The searchers on one broker: the owner of the things, and a guest who may read some of them."""

    owner: Searcher
    guest: Searcher


@pytest.fixture(scope="module")
def harnesses(
    mosquitto: Mosquitto, rabbitmq: RabbitMQ, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Searchers]]:
    """Start a connection on each broker, with thirty lamps in a namespace of its own.

    Seven of them match, and the guest can read one.
    """
    setups: list[BrokerSetup] = [MqttSetup(mosquitto), Mqtt5Setup(mosquitto), AmqpSetup(rabbitmq), KafkaSetup(kafka)]
    with ExitStack() as stack:
        made = {}
        for setup in setups:
            namespace = f"acme.{setup.kind.replace('-', '')}"
            owner, guest = (stack.enter_context(setup.client(name)) for name in ("owner", "guest"))
            made[setup.kind] = Searchers(Searcher(owner, namespace), Searcher(guest, namespace))
        documents = [
            setup.connection("site", setup.source("owner", OWNER), setup.source("guest", GUEST)) for setup in setups
        ]
        stack.enter_context(ServiceProcess.start(tmp_path_factory.mktemp("searching"), documents))
        for harness in made.values():
            furnish(harness.owner)
        yield made


def furnish(owner: Searcher) -> None:
    for number in range(30):
        attributes: dict[str, Any] = {"n": number, "secret": 1}
        if number < 7:
            attributes["counter"] = 10 - number
        readers = {"acme_guest": NO_SECRET} if number == 3 else {}
        value = {"_policy": policy_for(OWNER, **readers), "attributes": attributes}
        owner.requester.command(
            f"{owner.namespace}/lamp-{number:02}/things/twin/commands/create", value=value, wait=False
        )
    assert [owner.requester.next()["status"] for _ in range(30)] == [201] * 30


@pytest.fixture(params=KINDS)
def harness(request: pytest.FixtureRequest, harnesses: dict[str, Searchers]) -> Searchers:
    return harnesses[request.param]


def lamps(*numbers: int) -> list[str]:
    return [f"lamp-{number:02}" for number in numbers]


def test_cases_72_to_76_81_and_82_pages_on_demand_in_order(harness: Searchers) -> None:
    owner = harness.owner
    key = owner.subscribe("exists(attributes/counter)", "size(3),sort(-attributes/counter)", fields="thingId")
    assert [len(page) for page in owner.request(key, 1)] == [3]
    assert [len(page) for page in owner.request(key, 5)] == [3, 3, 1]
    names = [{"thingId": f"{owner.namespace}:{lamp}"} for lamp in lamps(0, 1, 2, 3, 4, 5, 6)]
    assert [thing for page in owner.pages(key) for thing in page] == names
    assert owner.messages(key) == ["created", "next", "next", "next", "complete"]
    key = owner.subscribe()
    assert [len(page) for page in owner.request(key, 5)] == [25, 5]
    key = owner.subscribe("exists(attributes/nothing)")
    assert (owner.request(key, 1), owner.messages(key)) == ([], ["created", "complete"])
    assert owner.found(namespaces=[f"{owner.namespace}.other"]) == []
    assert len(owner.found("le(attributes/n,6)", namespaces=[])) == 7 * len(KINDS)
    assert owner.found("ge(attributes/n,5)", "sort(+attributes/counter),size(200)")[-2:] == lamps(6, 5)


def test_cases_77_to_80_85_86_and_89_an_invalid_search_returns_an_error(harness: Searchers) -> None:
    owner = harness.owner
    for filter, options, code in (
        (None, "size(300)", OPTION),
        (None, "size(0)", OPTION),
        (None, "size=3", OPTION),
        ("exist=attribute/lol", None, RQL),
        (None, "sort(+foo)", OPTION),
        (None, "limit(0,1)", OPTION),
        (None, "cursor(a)", OPTION),
        (None, "sort(+thingId),sort(+thingId)", OPTION),
    ):
        key = owner.subscribe(filter, options)
        assert owner.fails(key) == (400, code)
    assert owner.fails(owner.subscribe(), -3) == (400, "thing-search:subscription.protocol.error")
    for channel in ("live", "none"):
        answer = owner.requester.ask_for(f"_/_/things/{channel}/search/subscribe", value={})
        assert answer["value"]["error"] == "protocoladapter:unknown.topicpath"
    answer = owner.requester.ask_for(f"{TOPIC}/request", value={"demand": 1})
    assert (answer["topic"], answer["value"]["error"]) == ("unknown/unknown/things/twin/errors", "json.field.missing")


def test_cases_83_and_84_a_search_finds_only_readable_things(harness: Searchers) -> None:
    guest = harness.guest
    assert guest.found() == lamps(3)
    assert guest.found("eq(attributes/secret,1)") == []
    assert guest.found("not(eq(attributes/secret,1))") == lamps(3)
    key = guest.subscribe()
    ((thing,),) = guest.request(key, 1)
    assert thing["attributes"] == {"n": 3, "counter": 7}
    # A subscription ID of another client does not exist.
    foreign = harness.owner.subscribe()
    assert guest.fails(foreign) == (404, "thing-search:subscription.not.found")


def test_cases_87_90_and_91_searches_at_the_same_time(harness: Searchers) -> None:
    owner = harness.owner
    keys = [owner.subscribe(f"eq(attributes/n,{10 + tag})", "size(1)") for tag in range(4)]
    owner.send("cancel", {"subscriptionId": keys[0]})
    for key in keys[1:]:
        owner.send("request", {"subscriptionId": key, "demand": 9})
    owner.wait(lambda _: all(owner.end(key) == "complete" for key in keys[1:]))
    assert [[thing["attributes"]["n"] for page in owner.pages(key) for thing in page] for key in keys] == [
        [],
        [11],
        [12],
        [13],
    ]
    key = owner.subscribe("ge(attributes/n,26)", "size(2)")
    owner.request(key, 1)
    gone = owner.requester.ask_for(f"{owner.namespace}/lamp-28/things/twin/commands/delete")
    assert gone["status"] == 204
    pages = owner.request(key, 5)
    assert [thing["attributes"]["n"] for page in pages for thing in page] == [26, 27, 29]
    topic = f"{owner.namespace}/lamp-00/things/twin/streaming/request"
    other = owner.requester.ask_for(topic, value={"subscriptionId": owner.subscribe(), "demand": 1})
    assert other["value"]["error"]["error"] == "streaming.subscription.not.found"


def test_every_write_that_was_answered_is_found(harness: Searchers) -> None:
    owner = harness.owner
    for number in range(25):
        modify = f"{owner.namespace}/lamp-20/things/twin/commands/modify"
        assert owner.requester.ask_for(modify, "/attributes/written", number)["status"] in (201, 204)
        assert owner.found(f"eq(attributes/written,{number})") == lamps(20)
        named = f'and(eq(thingId,"{owner.namespace}:lamp-20"),eq(attributes/written,{number}))'
        assert owner.found(named) == lamps(20)


def test_a_thing_is_found_by_names_of_every_script(harness: Searchers) -> None:
    owner = harness.owner
    named = {name: number for number, name in enumerate(KEYS)}
    value = {
        "_policy": policy_for(OWNER),
        "attributes": named,
        "features": {name: {"properties": {name: name}} for name in KEYS},
    }
    created = owner.requester.ask_for(f"{owner.namespace}/lamp-ключ/things/twin/commands/create", value=value)
    assert created["status"] == 201
    for number, name in enumerate(KEYS):
        path = in_path(name)
        key = owner.subscribe(
            f'and(eq(attributes/{path},{number}),eq(features/{path}/properties/{path},"{name}"))',
            f"sort(-attributes/{path})",
            fields=f"attributes/{path}",
        )
        assert owner.request(key) == [[{"attributes": {name: number}}]]
    assert owner.found(f'eq(thingId,"{owner.namespace}:lamp-ключ")') == ["lamp-ключ"]
