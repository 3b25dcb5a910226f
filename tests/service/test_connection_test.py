"""Connections are tested, refused and opened over the API of a running service, with real brokers.

Test names have the numbers of the cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.brokers import free_port
from tests.support.brokers.mosquitto import Certificates, Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.clients.amqp import AmqpClient
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import policy_for, topic
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE, wait_until_sync

pytestmark = [pytest.mark.broker("mosquitto"), pytest.mark.broker("rabbitmq")]

ALL = "/api/2/connections"
CONNECTION_TEST = "application/vnd.connectivity.connection-test+json"
OWNER = "acme:owner"
FAILED = (504, "connectivity:connection.failed")
UNAVAILABLE = (503, "connectivity:connection.unavailable")
TARGET = {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": [OWNER]}


class ApiOperator:
    """An operator at the API of a service."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=PATIENCE)

    def close(self) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Any:
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        headers = {} if body is None else {"content-type": kind}
        return self._client.request(method, path, content=content, headers=headers, params=query)

    def put(self, name: str, document: Mapping[str, Any]) -> Any:
        return self.ask("PUT", f"{ALL}/{name}", document)

    def command(self, name: str, what: str) -> Any:
        return self.ask("POST", f"{ALL}/{name}/command", f"connectivity.commands:{what}Connection", kind="text/plain")

    def tries(self, document: Mapping[str, Any], sample: Mapping[str, Any] | None = None) -> Any:
        if sample is None:
            return self.ask("POST", ALL, document, **{"dry-run": "true"})
        body = {"connection": document, "sample": sample}
        return self.ask("POST", ALL, body, kind=CONNECTION_TEST, **{"dry-run": "true"})

    def status(self, name: str) -> Any:
        return self.ask("GET", f"{ALL}/{name}/status").json()

    def ids(self) -> list[str]:
        found: list[str] = self.ask("GET", ALL, **{"ids-only": "true"}).json()
        return found

    def wait_for_status(self, name: str, status: str) -> None:
        wait_until_sync(lambda: self.status(name)["liveStatus"] == status)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiOperator]:
    folder = tmp_path_factory.mktemp("operating")
    with ServiceProcess.start(folder, [], reconnect={"min": "0.1s", "max": "0.5s"}) as service:
        made = ApiOperator(service)
        yield made
        made.close()


@pytest.fixture
def name() -> str:
    return f"c-{uuid4().hex[:8]}"


def mqtt(broker: Mosquitto, name: str, **more: Any) -> dict[str, Any]:
    """Return a connection document, closed by default."""
    return {
        "id": name,
        "connectionType": "mqtt-5",
        "connectionStatus": "closed",
        "uri": f"tcp://{broker.host}:{broker.port}",
        "sources": [
            {
                "addresses": [f"{name}/ask"],
                "qos": 1,
                "authorizationContext": [OWNER],
                "replyTarget": {"address": f"{name}/answers"},
            }
        ],
        **more,
    }


def amqp(broker: RabbitMQ, name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "connectionType": "amqp-091",
        "connectionStatus": "open",
        "uri": broker.uri(),
        "sources": [
            {
                "addresses": [f"{name}.in"],
                "authorizationContext": [OWNER],
                "replyTarget": {"address": "/{{ header:reply-to }}"},
            }
        ],
        **more,
    }


def status_and_code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]


def test_case_16_a_target_that_issues_a_label_may_be_tested(
    operator: ApiOperator, mosquitto: Mosquitto, name: str
) -> None:
    before = operator.ids()
    answer = operator.tries(
        mqtt(mosquitto, name, targets=[{**TARGET, "issuedAcknowledgementLabel": f"{name}:delivered"}])
    )
    assert (answer.status_code, answer.json()["connection"]) == (200, "open"), answer.text
    assert [each["status"] for each in answer.json()["sources"]] == ["open"]
    assert operator.ids() == before


def test_case_22_a_header_mapping_that_mqtt_3_1_1_cannot_send_is_refused(
    operator: ApiOperator, mosquitto: Mosquitto, name: str
) -> None:
    document = mqtt(mosquitto, name)
    document["sources"][0]["headerMapping"] = {"x-line": "{{ header:line }}"}
    refused = operator.put(name, {**document, "connectionType": "mqtt"})
    assert refused.status_code == 400
    assert refused.json()["problems"][0]["path"].startswith("sources[0].headerMapping")
    assert name not in operator.ids()
    assert operator.put(name, document).status_code == 201


def test_case_44_45_47_labels_and_announcements(operator: ApiOperator, mosquitto: Mosquitto, name: str) -> None:
    labelled = {**TARGET, "issuedAcknowledgementLabel": f"{name}:a"}
    twice = mqtt(mosquitto, name, targets=[labelled, {**labelled, "address": "other"}])
    assert status_and_code(operator.put(name, twice)) == (409, "acknowledgement:label.not.unique")
    foreign = mqtt(mosquitto, name, targets=[{**TARGET, "issuedAcknowledgementLabel": "another:a"}])
    assert status_and_code(operator.put(name, foreign)) == (400, "acknowledgement:label.invalid")
    announced = {**TARGET, "topics": ["_/_/connections/announcements"]}
    both = mqtt(mosquitto, name, clientCount=2, targets=[announced])
    assert status_and_code(operator.put(name, both)) == (400, "connectivity:connection.configuration.invalid")
    assert name not in operator.ids()


def test_case_46_a_put_on_a_fresh_id_creates(operator: ApiOperator, mosquitto: Mosquitto, name: str) -> None:
    assert operator.put(name, mqtt(mosquitto, name)).status_code == 201
    assert operator.put(name, mqtt(mosquitto, name, tags=["again"])).status_code == 204
    assert name in operator.ids()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mosquitto, Certificates]]:
    """A broker that wants certificates of its clients."""
    certificates = Certificates.make(tmp_path_factory.mktemp("guarded"), "localhost")
    with Mosquitto.start(tls=certificates, config_lines=("require_certificate true",)) as broker:
        yield broker, certificates


def test_case_48_a_broker_that_cannot_be_used_is_reported_and_nothing_is_stored(
    operator: ApiOperator, mosquitto: Mosquitto, guarded: tuple[Mosquitto, Certificates], name: str
) -> None:
    broker, certificates = guarded
    before = operator.ids()
    secure = {"uri": f"ssl://localhost:{broker.tls_port}"}
    ca = certificates.ca.read_text(encoding="utf-8")
    for change, expected, details in (
        ({"uri": f"tcp://127.0.0.1:{free_port()}"}, FAILED, "connection refused"),
        ({"uri": "tcp://nowhere.invalid:1883"}, FAILED, "unknown host"),
        (secure, FAILED, "certificate"),
        ({**secure, "ca": ca}, UNAVAILABLE, "certificate"),
    ):
        refused = operator.tries(mqtt(mosquitto, name, **change))
        assert status_and_code(refused) == expected, refused.text
        assert refused.json()["report"]["clients"][0]["details"].startswith(details), refused.text
        assert details in refused.json()["message"]
    own = {
        "type": "client-cert",
        "cert": certificates.client_certificate.read_text(encoding="utf-8"),
        "key": certificates.client_key_pkcs8(),
    }
    assert operator.tries(mqtt(mosquitto, name, **secure, ca=ca, credentials=own)).status_code == 200
    assert operator.ids() == before


def test_a_sample_is_mapped_with_the_broker_and_without(operator: ApiOperator, mosquitto: Mosquitto, name: str) -> None:
    payload = {"topic": topic("lamp-7", "commands/delete"), "path": "/", "headers": {"correlation-id": "c-7"}}
    sample = {"payload": json.dumps(payload), "headers": {}, "source": 0}
    found = operator.tries(mqtt(mosquitto, name), sample).json()
    away = operator.tries(mqtt(mosquitto, name, uri=f"tcp://127.0.0.1:{free_port()}"), sample).json()["report"]
    for report in (found, away):
        [signal] = report["sample"]["signals"]
        assert signal["topic"] == payload["topic"]
        [message] = signal["replies"]["response"]["messages"]
        assert (message["address"], message["payload"]["status"]) == (f"{name}/answers", 204)


def test_a_running_connection_can_be_tested_and_keeps_running(
    operator: ApiOperator, mosquitto: Mosquitto, name: str
) -> None:
    document = mqtt(mosquitto, name, connectionStatus="open")
    assert operator.put(name, document).status_code == 201
    operator.wait_for_status(name, "open")
    with MqttClient(mosquitto.host, mosquitto.port, ask=f"{name}/ask", answers=f"{name}/answers") as requester:
        made = requester.ask_for(
            topic(name, "commands/create"), value={"_policy": policy_for(OWNER), "attributes": {"n": 0}}
        )
        assert made["status"] == 201
        for number in range(20):
            requester.command(topic(name, "commands/modify"), "/attributes/n", value=number, wait=False)
            if number % 5 == 0:
                assert operator.tries(document).status_code == 200
        assert [requester.next()["status"] for _ in range(20)] == [204] * 20
    assert operator.status(name)["liveStatus"] == "open"


def test_7_8_a_missing_queue_is_reported_at_opening_and_found_once_it_exists(
    operator: ApiOperator, rabbitmq: RabbitMQ, name: str
) -> None:
    """POST → 201; `open` → 504 with the reason, also in the status; repeated until the queue exists."""
    document = amqp(rabbitmq, name)
    tried = operator.tries(document)
    assert status_and_code(tried) == FAILED
    assert tried.json()["report"]["sources"][0]["details"].startswith("missing address: ")
    created = operator.ask("POST", ALL, {key: value for key, value in document.items() if key != "id"})
    assert created.status_code == 201
    made = created.json()["id"]
    opened = operator.command(made, "open")
    assert status_and_code(opened) == FAILED
    assert f"{name}.in" in opened.text
    operator.wait_for_status(made, "misconfigured")
    with AmqpClient(rabbitmq.uri(), ask=f"{name}.in", answers=f"{name}.out"):
        operator.wait_for_status(made, "open")
        assert operator.tries(document).status_code == 200
    assert operator.ask("DELETE", f"{ALL}/{made}").status_code == 204


@pytest.mark.parametrize(
    ("user", "details"), [("service:wrong", "bad credentials"), ("stranger:known", "not authorized")]
)
def test_7_8_wrong_credentials_are_reported_and_tried_again(
    operator: ApiOperator, rabbitmq: RabbitMQ, name: str, user: str, details: str
) -> None:
    document = amqp(rabbitmq, name, uri=f"amqp://{user}@{rabbitmq.host}:{rabbitmq.port}/fleet")
    answer = operator.put(name, document)
    assert answer.status_code in (201, 504), answer.text
    opened = operator.command(name, "open")
    assert status_and_code(opened) == FAILED
    assert details in opened.text
    operator.wait_for_status(name, "misconfigured")
    assert operator.ask("DELETE", f"{ALL}/{name}").status_code == 204


def test_7_8_a_missing_exchange_costs_its_target_alone(operator: ApiOperator, rabbitmq: RabbitMQ, name: str) -> None:
    target = {"address": f"{name}.ex/key", "topics": ["_/_/things/twin/events"], "authorizationContext": [OWNER]}
    document = amqp(rabbitmq, name, targets=[target])
    with AmqpClient(rabbitmq.uri(), ask=f"{name}.in", answers=f"{name}.out"):
        tried = operator.tries(document)
        assert tried.status_code == 200
        assert [each["status"] for each in tried.json()["targets"]] == ["misconfigured"]
        assert operator.put(name, document).status_code == 201
        wait_until_sync(lambda: operator.status(name)["clientStatus"][0]["status"] == "open")
        assert operator.ask("DELETE", f"{ALL}/{name}").status_code == 204
