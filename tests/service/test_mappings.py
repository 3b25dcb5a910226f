"""Payload mappings over a real broker: devices of a gateway, several mappers per delivery, conditions.

Case numbers are those of the behavior cases of connections. The gateway is that of the example connections.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from mappings.model.envelope import Envelope
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.bare_mqtt import BareMqttClient
from tests.support.connection_documents import connection, policy_for, topic
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

EXAMPLE = ROOT / "examples" / "connections" / "onboarding.yaml"
OWNER = "demo:onboarding"
MESSAGE = "application/vnd.eclipse.ditto+json"
STRUCTURED = "application/cloudevents+json"
EMPTY = "application/vnd.eclipse-hono-empty-notification"

DEFINITIONS = {
    "alarms": {
        "mappingEngine": "Ditto",
        "options": {},
        "incomingConditions": {"isAlarm": "fn:filter(header:kind,'eq','alarm')"},
        "outgoingConditions": {"failed": "fn:filter(topic:criterion,'eq','errors')"},
    },
}


def source(name: str, *mapping: str) -> dict[str, Any]:
    return {
        "addresses": [f"maps/{name}/up"],
        "qos": 1,
        "authorizationContext": [OWNER],
        "payloadMapping": list(mapping),
        "replyTarget": {"address": f"maps/{name}/down"},
    }


@pytest.fixture(scope="module")
def service(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    uri = f"tcp://{mosquitto.host}:{mosquitto.port}"
    gateway = {**yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")), "uri": uri}
    sources = [source("plain"), source("both", "Ditto", "CloudEvents"), source("alarms", "alarms")]
    maps = connection(mosquitto, *sources, id="maps", connectionType="mqtt-5", mappingDefinitions=DEFINITIONS)
    with ServiceProcess.start(tmp_path_factory.mktemp("mappings"), [gateway, maps]) as running:
        yield running


class Device:
    """A client that publishes to one topic and subscribes to another."""

    def __init__(self, bare_client: BareMqttClient, address: str) -> None:
        self._bystander, self._address = bare_client, address
        self._read = 0

    def send(self, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._bystander.send(self._address, [payload], headers)

    def next(self) -> Envelope:
        wait_until_sync(lambda: len(self._bystander.received) > self._read)
        self._read += 1
        return self._bystander.received[self._read - 1]

    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self.next().payload))

    def assert_nothing_came(self, thing: str, headers: Mapping[str, str] | None = None) -> None:
        """Prove that nothing came: retrieve a thing, and the next message is the answer."""
        self.send(document(thing, "retrieve", **{"correlation-id": "last"}), headers)
        answer = self.answer()
        assert answer["headers"]["correlation-id"] == "last", f"came before the answer: {answer}"


@pytest.fixture
def plain(service: ServiceProcess, mosquitto: Mosquitto) -> Iterator[Device]:
    """A client without any mapping."""
    with BareMqttClient(mosquitto.host, mosquitto.port, "maps/plain/down", is_5=True) as bare_client:
        yield Device(bare_client, "maps/plain/up")


@pytest.fixture
def name() -> str:
    """A thing of this test alone."""
    return f"box-{secrets.token_hex(4)}"


def document(name: str, action: str, path: str = "/", value: Any = None, **headers: Any) -> bytes:
    command = {"topic": topic(name, f"commands/{action}"), "path": path, "headers": headers}
    return json.dumps(command if value is None else {**command, "value": value}).encode()


def state(plain: Device, name: str) -> tuple[dict[str, Any], str]:
    """Return a thing and its entity tag."""
    plain.send(document(name, "retrieve"))
    found = plain.answer()
    assert found["status"] == 200, found
    return found["value"], found["headers"]["etag"]


@pytest.mark.usefixtures("service")
def test_case_55_a_gateway_s_device_gets_its_thing_and_its_status(
    mosquitto: Mosquitto, plain: Device, name: str
) -> None:
    headers = {"device_id": f"acme.site:{name}", "gateway_id": "g-1"}
    with BareMqttClient(mosquitto.host, mosquitto.port, f"onboarding/{name}/down", is_5=True) as bare_client:
        device = Device(bare_client, f"onboarding/{name}/up")

        def report(value: int, **more: str) -> dict[str, Any]:
            command = document(name, "modify", "/attributes/level", value)
            device.send(command, {**headers, **more})
            return device.answer()

        assert report(1)["status"] == 201
        thing, first = state(plain, name)
        assert (thing["attributes"]["gateway"], thing["attributes"]["level"]) == ("g-1", 1)
        assert "features" not in thing

        answer = report(2, **{"creation-time": "1569333903000", "ttd": "20"})
        assert (answer["status"], answer["headers"]["device_id"]) == (204, headers["device_id"])
        thing, second = state(plain, name)
        status = thing["features"]["ConnectionStatus"]["properties"]["status"]
        assert status == {"readySince": "2019-09-24T14:05:03Z", "readyUntil": "2019-09-24T14:05:23Z"}
        assert [revision(first), revision(second)] == [2, 4], "each report moves the thing on twice: status and level"

        # A notification without a payload is about the connection alone, and gets no response.
        device.send(b"", {**headers, "creation-time": "1569333904000", "ttd": "0", "content-type": EMPTY})
        assert report(3)["status"] == 204
        thing, third = state(plain, name)
        status = thing["features"]["ConnectionStatus"]["properties"]["status"]
        assert status["readyUntil"] == "2019-09-24T14:05:04Z"
        assert revision(third) == 6
        device.assert_nothing_came(name, headers)


def revision(tag: str) -> int:
    return int(tag.strip('"').rpartition(":")[2])


@pytest.mark.usefixtures("service")
def test_case_11_a_gateway_message_about_another_device_is_refused(
    mosquitto: Mosquitto, plain: Device, name: str
) -> None:
    plain.send(document(name, "create", value={"_policy": policy_for(OWNER), "attributes": {"level": 0}}))
    assert plain.answer()["status"] == 201
    with BareMqttClient(mosquitto.host, mosquitto.port, f"onboarding/{name}/down", is_5=True) as bare_client:
        device = Device(bare_client, f"onboarding/{name}/up")
        command = document(name, "modify", "/attributes/level", 1)
        device.send(command, {"device_id": f"acme.site:{name}-2"})
        refused = device.answer()
        assert (refused["status"], refused["topic"]) == (400, topic(name, "errors"))
        assert state(plain, name)[0]["attributes"] == {"level": 0}


@pytest.mark.usefixtures("service")
def test_case_53_each_command_of_a_delivery_is_answered_once_in_its_own_format(mosquitto: Mosquitto, name: str) -> None:
    event = {"content-type": MESSAGE, "ce-specversion": "1.0", "ce-type": "t", "ce-source": "s", "ce-id": "e-1"}
    with BareMqttClient(mosquitto.host, mosquitto.port, "maps/both/down", is_5=True) as bare_client:
        device = Device(bare_client, "maps/both/up")
        made = document(name, "create", value={"_policy": policy_for(OWNER)}, **{"correlation-id": "own"})
        device.send(made, event)
        created, refused = device.next(), device.next()
        assert [each.headers["content-type"] for each in (created, refused)] == [MESSAGE, STRUCTURED]
        answer, answered = json.loads(created.payload), json.loads(refused.payload)
        assert (answer["status"], answer["headers"]["correlation-id"]) == (201, "own")
        assert (answered["id"], answered["data"]["status"]) == ("e-1", 400)
        # A payload that no mapper can read gets one error, in the Ditto protocol.
        device.send(b"{ no JSON", event)
        assert json.loads(device.next().payload)["value"]["error"] == "json.invalid"
        device.send(document(name, "retrieve"), {"content-type": "application/json"})
        assert json.loads(device.next().payload)["status"] == 200
        device.assert_nothing_came(name, {"content-type": "application/json"})


@pytest.mark.usefixtures("service")
def test_conditions_select_the_commands_to_read_and_the_responses_to_send(mosquitto: Mosquitto, name: str) -> None:
    with BareMqttClient(mosquitto.host, mosquitto.port, "maps/alarms/down", is_5=True) as bare_client:
        device = Device(bare_client, "maps/alarms/up")
        made = document(name, "create", value={"_policy": policy_for(OWNER)})
        device.send(made, {"kind": "report"})
        device.send(document(name, "modify", "/attributes/level", 1), {"kind": "alarm"})
        assert device.answer()["status"] == 404, "the report was not read"
        device.send(made, {"kind": "alarm"})
        device.send(document(name, "modify", "/nowhere", 1), {"kind": "alarm"})
        assert device.answer()["value"]["error"] == "protocoladapter:unknown.path", "there is no response to the create"
        device.assert_nothing_came(f"{name}-none", {"kind": "alarm"})
