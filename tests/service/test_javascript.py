"""Mapping scripts in the whole service, over a real broker, also beside hostile scripts.

They map the messages of devices, and messages for readers of other formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import Reader, client, connection, policy_for, source, topic
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = pytest.mark.broker("mosquitto")

OWNER = "acme:owner"
METER = "meter-1"

DEVICE = """
function mapToDittoProtocolMsg(headers, textPayload, bytePayload) {
    const set = (path, value) => Ditto.buildDittoProtocolMsg(
        'acme.site', 'meter-1', 'things', 'twin', 'commands', 'modify', path, {}, value);
    if (textPayload.startsWith('loop')) for (;;);
    if (textPayload.startsWith('hang')) return new Array(2 ** 31).sort();
    if (textPayload.startsWith('bomb')) { const all = []; for (;;) all.push(new Array(1000).fill(0)); }
    if (textPayload.startsWith('evil')) { Object.prototype.topic = 'x'; return null; }
    if (textPayload.startsWith('text ')) return set('/attributes/text', textPayload.slice(5));
    const view = new DataView(bytePayload);
    return [set('/attributes/high', view.getInt16(0)), set('/attributes/low', view.getUint16(2))];
}
"""

TABLE = """
function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, headers, value, status) {
    const row = [criterion, action, path, value, status ?? null];
    return Ditto.buildExternalMsg({}, JSON.stringify(row), null, 'application/json');
}
"""

DEFINITIONS = {
    "device": {"mappingEngine": "JavaScript", "options": {"incomingScript": DEVICE}},
    "table": {"mappingEngine": "JavaScript", "options": {"incomingScript": "", "outgoingScript": TABLE}},
}


@pytest.fixture(scope="module")
def service(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    scripted = connection(
        mosquitto,
        source("js/plain", OWNER),
        source("js/device", OWNER, payloadMapping=["device"]),
        source("js/table", OWNER, payloadMapping=["table"]),
        mappingDefinitions=DEFINITIONS,
    )
    other = connection(
        mosquitto, source("js/other", OWNER, payloadMapping=["device"]), mappingDefinitions=DEFINITIONS, id="other"
    )
    with ServiceProcess.start(tmp_path_factory.mktemp("javascript"), [scripted, other]) as running:
        yield running


@pytest.fixture(scope="module")
def clients(service: ServiceProcess, mosquitto: Mosquitto) -> Iterator[dict[str, MqttClient]]:
    made = {name: client(mosquitto, f"js/{name}") for name in ("plain", "device", "table", "other")}
    answer = made["plain"].ask_for(topic(METER, "commands/create"), value={"_policy": policy_for(OWNER)})
    assert answer["status"] == 201, answer
    yield made
    for requester in made.values():
        requester.close()


def attribute(clients: dict[str, MqttClient], name: str) -> Any:
    return clients["plain"].ask_for(topic(METER, "commands/retrieve"), f"/attributes/{name}")["value"]


def test_bytes_of_a_device_become_two_commands(clients: dict[str, MqttClient]) -> None:
    clients["device"].send(b"\xff\xfe\x02\xf8")
    answers = [clients["device"].next() for _ in range(2)]
    assert [answer["path"] for answer in answers] == ["/attributes/high", "/attributes/low"]
    assert (attribute(clients, "high"), attribute(clients, "low")) == (-2, 760)


@pytest.mark.parametrize(("payload", "reason"), [("loop", "ran longer"), ("hang", "ran longer"), ("bomb", "could not")])
def test_a_hostile_script_is_answered_with_its_error_and_costs_no_one_else(
    clients: dict[str, MqttClient], payload: str, reason: str
) -> None:
    for number in range(2):
        clients["device"].send(payload.encode())
        clients["device"].send(f"text {payload} {number}".encode())
    clients["other"].send(f"text other {payload}".encode())
    assert clients["other"].next()["status"] in (201, 204)
    for _ in range(2):
        answer = clients["device"].next()
        assert answer["topic"].endswith("/things/twin/errors")
        assert answer["value"]["error"] == "connectivity:message.mapping.failed"
        assert reason in answer["value"]["message"]
        assert clients["device"].next()["status"] in (201, 204)
    assert attribute(clients, "text").startswith((payload, "other"))


def test_a_prototype_change_by_one_message_does_not_affect_the_next(clients: dict[str, MqttClient]) -> None:
    clients["device"].send(b"evil")
    clients["device"].send(b"text clean")
    assert clients["device"].next()["status"] in (201, 204)
    assert attribute(clients, "text") == "clean"


def test_the_past_is_replayed_through_an_outgoing_script_in_order(clients: dict[str, MqttClient]) -> None:
    for number in range(20):
        clients["device"].send(f"text row {number}".encode(), wait=False)
    for _ in range(20):
        clients["device"].next()
    revisions = len(Reader(clients["plain"], METER).all())
    requester: Any = clients["table"]
    requester.send({"topic": topic(METER, "streaming/subscribeForPersistedEvents"), "path": "/", "value": {}})
    created = requester.next()
    assert created[:2] == ["streaming", "created"]
    demand = {"subscriptionId": created[3]["subscriptionId"], "demand": 1000}
    requester.send({"topic": topic(METER, "streaming/request"), "path": "/", "value": demand})
    rows = [requester.next() for _ in range(revisions + 1)]
    assert [row[1] for row in rows] == ["next"] * revisions + ["complete"]
    assert [row[3]["item"]["value"] for row in rows[-21:-1]] == [f"row {number}" for number in range(20)]


def read(requester: MqttClient, feature: str) -> Any:
    path = f"/features/{feature}/properties/value"
    return requester.ask_for("demo/s-1/things/twin/commands/retrieve", path)["value"]


def test_the_example_connection_maps_sensors(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Its responses are lines of text, so a client without a script reads the twin."""
    example = ROOT / "examples" / "connections" / "sensors.yaml"
    document = yaml.safe_load(example.read_text(encoding="utf-8"))
    document["uri"] = f"tcp://{mosquitto.host}:{mosquitto.port}"
    plain = connection(mosquitto, source("js/demo", "demo:devices"), id="demo")
    with (
        ServiceProcess.start(tmp_path, [document, plain]),
        client(mosquitto, "js/demo") as requester,
        MqttClient(mosquitto.host, mosquitto.port, ask="sensors/s-1/raw", answers="sensors/none") as sensor,
    ):
        features: dict[str, dict[str, dict[str, Any]]] = {
            name: {"properties": {}} for name in ("temperature", "pressure")
        }
        value = {"_policy": policy_for("demo:devices"), "features": features}
        assert requester.ask_for("demo/s-1/things/twin/commands/create", value=value)["status"] == 201
        sensor.send(b"\x08\xbd\x02\xf8")
        sensor.send(b"temperature=21.5")
        wait_until_sync(lambda: read(requester, "temperature") == 21.5, 60)
        assert read(requester, "pressure") == 760
