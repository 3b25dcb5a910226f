"""Connections that fail, break and recover: each reports its reason, and none affects another.

Every reason has its own words in front of the status details. A service whose connections fail is ready all the same, since
a restart of the service would repair nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.brokers.proxy import ProxyThread
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import (
    Reader,
    added,
    client,
    connection,
    policy_for,
    running,
    source,
    topic,
    wait_until_open,
)
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

OWNER = "acme:owner"
SHORTEST, LONGEST = 0.05, 0.4
PAUSES = {"min": f"{SHORTEST}s", "max": f"{LONGEST}s"}
RARELY = {"min": "5s", "max": "20s"}
"""Long pauses, because connections that never succeed would keep the machine busy."""


# --- what cannot be made ------------------------------------------------------------------------------------------------

DETAILS = {
    "good": "connected",
    "good-tls": "connected",
    "unreachable": "connection refused: ",
    "unknown-host": "unknown host: ",
    "bad-password": "bad credentials: ",
    "no-password": "bad credentials: ",
    "untrusted-ca": "certificate: ",
    "wrong-host-name": "certificate: ",
    "no-client-certificate": "certificate: ",
    "not-authorized": "not authorized: closed/ask: ",
    "not-authorized-5": "not authorized: closed/ask: Not authorized",
    "hangs-up": "refused by broker: the broker closed the connection",
    "no-tls-there": "refused by broker: TLS: ",
}
"""Connection → how its status details begin."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with a connection for every kind of failure, two valid ones, and invalid files."""
    right = Certificates.make(tmp_path_factory.mktemp("right"))
    wrong = Certificates.make(tmp_path_factory.mktemp("wrong"), "another.test")
    with (
        Mosquitto.start(users={"ada": "right"}, tls=wrong) as guarded,
        Mosquitto.start(tls=right, config_lines=["require_certificate true"]) as certified,
        Mosquitto.start(allowed=["open/#"]) as listed,
        ProxyThread(listed.host, listed.port) as hanging,
    ):
        hanging.refuse()
        trusted = {"ca": right.ca.read_text()}
        own = {"type": "client-cert", "cert": right.client_certificate.read_text(), "key": right.client_key_pkcs8()}
        certified_uri = f"ssl://localhost:{certified.tls_port}"
        ways: dict[str, dict[str, Any]] = {
            "good": {},
            "good-tls": {"uri": certified_uri, "credentials": own, **trusted},
            "unreachable": {"uri": f"tcp://127.0.0.1:{free_port()}"},
            "unknown-host": {"uri": "tcp://no-such-host.invalid:1883"},
            "bad-password": {"uri": f"tcp://ada:wrong-secret@127.0.0.1:{guarded.port}"},
            "no-password": {"uri": guarded.uri()},
            "untrusted-ca": {"uri": certified_uri, "credentials": own},
            "wrong-host-name": {"uri": f"ssl://ada:right@localhost:{guarded.tls_port}", "ca": wrong.ca.read_text()},
            "no-client-certificate": {"uri": certified_uri, **trusted},
            "not-authorized": {"sources": [source("closed", OWNER)]},
            "not-authorized-5": {"connectionType": "mqtt-5", "sources": [source("closed", OWNER)]},
            "hangs-up": {"uri": f"tcp://127.0.0.1:{hanging.port}"},
            "no-tls-there": {"uri": f"ssl://127.0.0.1:{listed.port}"},
        }
        documents = [
            connection(listed, source("open", OWNER), **{"id": name, "specificConfig": {"clientId": name}, **way})
            for name, way in ways.items()
        ]
        folder = tmp_path_factory.mktemp("connections")
        (folder / "connections").mkdir()
        (folder / "connections" / "cut-off.json").write_text('{"id": "cut-off", "connectionType":', encoding="utf-8")
        (folder / "connections" / "mistaken.yaml").write_text("connectionType: mqtq\nuri: [1]\n", encoding="utf-8")
        with ServiceProcess.start(folder, documents, reconnect=RARELY) as service:
            yield service


def test_the_service_is_ready_though_connections_fail(broken: ServiceProcess) -> None:
    status, body = broken.get("/health/ready")
    shown = json.loads(body)
    assert (status, shown["status"], shown["store"]) == (200, "ready", "writable")
    assert set(shown["connections"]) == set(DETAILS)


@pytest.mark.parametrize("name", DETAILS)
def test_each_failure_has_its_own_message(broken: ServiceProcess, name: str) -> None:
    wait_until_sync(lambda: broken.status(name)["details"].startswith(DETAILS[name]))
    found = broken.status(name)
    is_good = DETAILS[name] == "connected"
    assert (found["status"] == "open") is is_good
    assert broken.metric("connectivity_connection_up", connection=name) == float(is_good)
    assert "secret" not in found["details"]


@pytest.mark.parametrize(
    ("name", "status"),
    [("bad-password", "misconfigured"), ("unreachable", "misconfigured"), ("wrong-host-name", "misconfigured")],
)
def test_an_error_that_only_an_operator_can_fix_is_misconfigured(
    broken: ServiceProcess, name: str, status: str
) -> None:
    assert broken.status(name)["status"] == status


def test_files_that_cannot_be_used_are_named_in_the_log(broken: ServiceProcess) -> None:
    found = [line for line in broken.records() if line["event"] == "connection file has a problem"]
    assert {Path(line["file"]).name for line in found} == {"cut-off.json", "mistaken.yaml"}
    assert {line["path"] for line in found if "mistaken" in line["file"]} >= {"connectionType", "uri"}


# --- one service for all that comes back --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Mosquitto]:
    with Mosquitto.start() as started:
        yield started


@pytest.fixture
def broker(own_broker: Mosquitto) -> Mosquitto:
    """A broker that the test may stop and kill."""
    if not own_broker.is_running():
        own_broker.start_again()
    return own_broker


@pytest.fixture(scope="module")
def own_service(own_broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("recovering")
    with ServiceProcess.start(folder, [connection(own_broker, source("c", OWNER))], reconnect=PAUSES) as started:
        yield started


@pytest.fixture
def service(own_service: ServiceProcess, broker: Mosquitto) -> ServiceProcess:
    """A service with the connection `site`. A test may stop it, and adds connections of its own."""
    started = running(own_service)
    wait_until_open(started, "site")
    return started


# --- how often it is tried ----------------------------------------------------------------------------------------------


def gaps(attempts: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(attempts)]


def test_pauses_between_tries_double_up_to_the_longest(service: ServiceProcess) -> None:
    """Each pause is at least half of its limit, and never more than the longest."""
    with (
        ProxyThread("127.0.0.1", free_port()) as unused,
        added(service, connection(unused, source("x", OWNER), id="nobody"), connected=False),
    ):
        wait_until_sync(lambda: len(unused.attempts) >= 6)
        shortest = [min(LONGEST, SHORTEST * 2**number) / 2 for number in range(5)]
        found = gaps(unused.attempts)
        assert all(gap >= least for gap, least in zip(found, shortest, strict=False)), found
        assert service.get("/health/ready")[0] == 200


def test_a_refusal_is_tried_again_with_the_longest_pause_from_the_start(service: ServiceProcess) -> None:
    with Mosquitto.start(users={"ada": "right"}) as guarded, ProxyThread(guarded.host, guarded.port) as counted:
        uri = f"tcp://ada:wrong@{counted.host}:{counted.port}"
        refused = connection(counted, source("x", OWNER), id="refused", uri=uri)
        with added(service, refused, connected=False):
            wait_until_sync(lambda: len(counted.attempts) >= 3)
            assert all(gap >= LONGEST / 2 for gap in gaps(counted.attempts)), gaps(counted.attempts)


# --- what comes back ----------------------------------------------------------------------------------------------------


def make(requester: MqttClient, name: str, changes: int = 0) -> None:
    """A thing with `changes` + 1 revisions."""
    answer = requester.ask_for(
        topic(name, "commands/create"), value={"_policy": policy_for(OWNER), "attributes": {"n": 0}}
    )
    assert answer["status"] == 201, answer
    for number in range(changes):
        requester.send({"topic": topic(name, "commands/modify"), "path": "/attributes/n", "value": number}, wait=False)
    for _ in range(changes):
        assert requester.next()["status"] == 204


def test_a_connection_recovers_when_its_broker_comes_back(service: ServiceProcess, broker: Mosquitto) -> None:
    with client(broker, "c") as requester:
        make(requester, "fan-1")
    for end in (broker.kill, broker.stop):
        end()
        wait_until_sync(lambda: service.status("site")["status"] in ("failed", "misconfigured"))
        assert service.metric("connectivity_connection_up", connection="site") == 0
        wait_until_sync(lambda: service.status("site")["details"].startswith("connection refused: "))
        assert service.get("/health/ready")[0] == 200
        broker.start_again()
        wait_until_sync(lambda: service.status("site") == {"status": "open", "details": "connected"})
        assert service.metric("connectivity_connection_up", connection="site") == 1
        with client(broker, "c") as requester:
            assert requester.ask_for(topic("fan-1", "commands/retrieve"))["status"] == 200


def test_commands_sent_while_the_service_is_down_are_processed_after_a_late_broker_start(
    service: ServiceProcess, broker: Mosquitto
) -> None:
    """The broker keeps the session, so a device need not know whether the service runs."""
    with client(broker, "c", keeps_session=True) as requester:
        make(requester, "fan-2")
        service.stop()
        sent = [requester.command(topic("fan-2", "commands/modify"), "/attributes/n", number) for number in range(20)]
        broker.stop()
        service.start_again()
        assert service.status("site")["details"].startswith("connection refused: ")
        broker.start_again()
        wait_until_sync(lambda: service.status("site")["details"] == "connected")
        answers = [requester.next() for _ in sent]
        assert [answer["headers"]["correlation-id"] for answer in answers] == sent
        assert [answer["headers"]["entity-revision"] for answer in answers] == list(range(2, 22))


def restart(broker: Mosquitto, requester: MqttClient) -> None:
    """Restart the broker, and wait until the client is there again."""
    links = requester.links
    broker.restart()
    wait_until_sync(lambda: requester.links > links)


def once_each(requester: MqttClient, events: list[dict[str, Any]]) -> list[int]:
    """Return the revisions in the order of their first arrival; repeats must have the same bytes."""
    first: dict[int, bytes] = {}
    for message in requester.messages:
        document = json.loads(message.payload)
        if document["topic"].endswith("/next"):
            revision = document["value"]["item"]["revision"]
            assert first.setdefault(revision, bytes(message.payload)) == message.payload
    assert set(first) == {event["value"]["item"]["revision"] for event in events}
    return list(first)


def test_a_running_replay_and_its_subscription_outlive_restarts_of_the_broker(
    service: ServiceProcess, broker: Mosquitto
) -> None:
    """Events continue in order and without a gap; repeated ones are equal."""
    count = 3000
    with client(broker, "c", keeps_session=True) as requester:
        make(requester, "fan-3", count - 1)
        requester.messages.clear()
        subscription = Reader(requester, "fan-3")
        seen: list[dict[str, Any]] = []
        for last in (count // 3, count // 3 * 2):
            subscription.request(count // 3)
            seen += [requester.next() for _ in range(100)]
            restart(broker, requester)
            while seen[-1]["value"]["item"]["revision"] != last:
                seen.append(requester.next())
        assert service.metric("connectivity_demand", connection="site") == 0
        subscription.request(count)
        seen += requester.until("complete")[:-1]
        assert once_each(requester, seen) == list(range(1, count + 1))


def test_a_replay_through_a_link_that_is_cut_again_and_again_has_no_gap(
    service: ServiceProcess, broker: Mosquitto
) -> None:
    """Half-sent packets and lost confirms included: the cuts come whenever so many more bytes have passed."""
    count, cuts = 1500, 8
    with (
        ProxyThread(broker.host, broker.port) as proxy,
        added(service, connection(proxy, source("cut", OWNER), id="cut")),
        client(broker, "cut") as requester,
    ):
        make(requester, "fan-4", count - 1)
        requester.messages.clear()
        subscription = Reader(requester, "fan-4")
        proxy.cut_every(60_000, cuts)
        subscription.request(count)
        events = requester.until("complete")[:-1]
        assert once_each(requester, events) == list(range(1, count + 1))
        assert len(proxy.attempts) == 1 + cuts
        assert service.get("/health/ready")[0] == 200


def test_a_subscription_waits_for_its_broker(service: ServiceProcess, broker: Mosquitto) -> None:
    """Created before the broker ends, asked after it is back; one that is new then works beside it."""
    with client(broker, "c", keeps_session=True) as requester:
        make(requester, "fan-5", 4)
        subscription = Reader(requester, "fan-5")
        restart(broker, requester)
        wait_until_sync(lambda: service.status("site")["details"] == "connected")
        assert [item["revision"] for item in subscription.all()] == [1, 2, 3, 4, 5]
        assert [item["revision"] for item in Reader(requester, "fan-5").all()] == [1, 2, 3, 4, 5]


# --- what a broker will not take ----------------------------------------------------------------------------------------

PACKET = 20_000
"""The largest packet that the broker accepts.

A broker of MQTT 3.1.1 disconnects the client; one of MQTT 5 announces the limit.
"""


class SmallPacketConnection(NamedTuple):
    """A connection to a broker for small packets, its client, and a thing that is larger than those."""

    connection: str
    requester: MqttClient
    thing: str


@pytest.fixture(scope="module", params=["mqtt", "mqtt-5"])
def narrow(
    request: pytest.FixtureRequest, own_service: ServiceProcess, own_broker: Mosquitto
) -> Iterator[SmallPacketConnection]:
    """The thing's seventh event is the only large one."""
    name = f"narrow-{request.param}"
    with (
        Mosquitto.start(config_lines=[f"max_packet_size {PACKET}"]) as small,
        added(running(own_service), connection(small, source(name, OWNER), id=name, connectionType=request.param)),
        client(own_broker, "c") as maker,
        client(small, name) as requester,
    ):
        make(maker, name, 5)
        answer = maker.ask_for(topic(name, "commands/modify"), "/attributes/large", "x" * PACKET)
        assert answer["status"] == 201
        for number in range(5):
            maker.ask_for(topic(name, "commands/modify"), "/attributes/n", number)
        yield SmallPacketConnection(name, requester, name)


def test_an_answer_that_the_broker_will_not_take_is_given_up(
    service: ServiceProcess, narrow: SmallPacketConnection
) -> None:
    """An error is sent instead; later responses are sent, and the connection stays open."""
    answer = narrow.requester.ask_for(topic(narrow.thing, "commands/retrieve"))
    assert (answer["status"], answer["value"]["error"]) == (413, "connectivity:message.sending.failed")
    answer = narrow.requester.ask_for(topic(narrow.thing, "commands/retrieve"), "/attributes/n")
    assert answer["value"] == 4
    failed = {"connection": narrow.connection, "direction": "out", "outcome": "failed"}
    assert service.metric("connectivity_deliveries_total", **failed) == 1
    settled = {"connection": narrow.connection, "direction": "in", "outcome": "settled"}
    wait_until_sync(lambda: service.metric("connectivity_deliveries_total", **settled) >= 2)
    assert service.status(narrow.connection)["details"] == "connected"


def test_a_replay_fails_at_an_event_that_the_broker_will_not_take(narrow: SmallPacketConnection) -> None:
    """The stream ends rather than having an unnoticed gap: with `failed`, and never with `complete`."""
    Reader(narrow.requester, narrow.thing).request(100)
    answers = [narrow.requester.next()]
    while answers[-1]["topic"].endswith("/next"):
        answers.append(narrow.requester.next())
    assert answers[-1]["topic"].endswith("/failed")
    assert answers[-1]["value"]["error"]["status"] == 413
    found = [answer["value"]["item"]["revision"] for answer in answers[:-1]]
    assert [revision for revision in found if revision < 7] == [1, 2, 3, 4, 5, 6]
    assert 7 not in found


# --- files that change --------------------------------------------------------------------------------------------------


def test_files_are_followed_while_the_service_runs(service: ServiceProcess, broker: Mosquitto) -> None:
    """A new file opens a connection, a removed one closes it, an invalid one changes nothing."""
    with client(broker, "c") as requester:
        make(requester, "fan-6")
        file = service.folder / "connections" / "second.json"
        second = connection(broker, source("d", OWNER), id="second")
        file.write_text(json.dumps(second), encoding="utf-8")
        wait_until_sync(lambda: service.status("second").get("details") == "connected")
        with client(broker, "d") as other:
            assert other.ask_for(topic("fan-6", "commands/retrieve"))["status"] == 200
            file.write_text('{"id": "second", ', encoding="utf-8")
            wait_until_sync(lambda: any("second.json" in str(line.get("file")) for line in service.records()))
            assert other.ask_for(topic("fan-6", "commands/retrieve"))["status"] == 200
        file.unlink()
        wait_until_sync(lambda: not service.status("second"))
        assert requester.ask_for(topic("fan-6", "commands/retrieve"))["status"] == 200
