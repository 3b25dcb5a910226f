"""One thing in both protocols over a real Mosquitto: changed, followed and replayed through Ditto and through Streamr.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from mappings.streamr.access import fingerprint
from tests.brokers.mosquitto import Mosquitto
from tests.client import MqttClient
from tests.integration.documents import EVERYTHING, READ, Reader, client, connection, policy_for, source, topic
from tests.service import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")

WRITER, READER = "acme:writer", "acme:reader"
KEY = "opens the pump"
PATIENCE = 60.0
PLACE = f"twins-{secrets.token_hex(3)}"
CHANGES = 40

Parties = dict[str, MqttClient]


@pytest.fixture(scope="module")
def parties(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    """A writer and a reader of the Ditto protocol, one who follows by Streamr, and a target's audience."""
    document = connection(
        mosquitto,
        source(f"{PLACE}/writer", WRITER),
        source(f"{PLACE}/reader", READER),
        source(f"{PLACE}/pump", "acme:gateway", payloadMapping=["pumps"]),
        mappingDefinitions={
            "pumps": {"mappingEngine": "Streamr", "options": {"authKeys": {"pump": fingerprint(KEY)}}},
        },
    )
    # What came in over a connection is no news to it.
    audience = connection(
        mosquitto,
        id="audience",
        targets=[
            {
                "address": f"{PLACE}/audience/answers",
                "topics": ["_/_/things/twin/events"],
                "authorizationContext": [READER],
                "qos": 1,
            }
        ],
    )
    made = {name: client(mosquitto, f"{PLACE}/{name}") for name in ("writer", "reader", "pump", "audience")}
    kept = {"lake": {"retention": {"default": "forever", "acme.site": "30d"}}, "spark": {"mode": "external"}}
    with ServiceProcess.start(tmp_path_factory.mktemp("twins"), [document, audience], **kept):
        yield made
    for party in made.values():
        party.close()


def asks(party: MqttClient, type: str, stream: str, **more: Any) -> None:
    party.send({"type": type, "stream": stream, "authKey": KEY, **more}, wait=False)


def modify(name: str, path: str, value: Any) -> dict[str, Any]:
    return {"topic": topic(name, "commands/modify"), "headers": {}, "path": path, "value": value}


def plain(item: dict[str, Any]) -> dict[str, Any]:
    """An item of a history without what its message repeats of the subscribe."""
    own = {name: item["headers"][name] for name in ("content-type", "historical-headers") if name in item["headers"]}
    return {**item, "headers": own}


def without_ttl(frame: Any) -> list[Any]:
    """A message without what changes with time."""
    return [item for index, item in enumerate(frame[3]) if index != 4]


def test_one_thing_has_the_same_events_in_the_same_order_in_both_protocols(parties: Parties) -> None:
    """Changed from both sides at once; followed live through Streamr and a target; then replayed both ways. Case X06."""
    writer, reader, pump, audience = (parties[name] for name in ("writer", "reader", "pump", "audience"))
    name = f"pump-{secrets.token_hex(3)}"
    stream = f"things/acme.site:{name}"
    policy = policy_for(WRITER, acme_reader={"thing:/": READ}, streamr_pump={"thing:/": EVERYTHING})
    created = writer.ask_for(topic(name, "commands/create"), value={"_policy": policy, "attributes": {"n": 0}})
    assert created["status"] == 201, created
    asks(pump, "subscribe", stream)
    assert pump.next(PATIENCE) == [0, 2, "", {"stream": stream, "partition": 0}]
    for number in range(1, CHANGES + 1):
        writer.command(topic(name, "commands/modify"), "/attributes/n", {"by": "writer", "n": number}, wait=False)
        asks(pump, "publish", stream, msg=json.dumps(modify(name, "/attributes/n", {"by": "pump", "n": number})))
    assert {writer.next(PATIENCE)["status"] for _ in range(CHANGES)} == {204}
    newest = 1 + 2 * CHANGES

    live: list[Any] = [pump.next(PATIENCE) for _ in range(2 * CHANGES)]
    assert [frame[:3] for frame in live] == [[0, 0, ""]] * len(live)
    assert [frame[3][5:7] for frame in live] == [[offset, offset - 1] for offset in range(2, newest + 1)]
    by = [json.loads(frame[3][8])["value"] for frame in live]
    for party in ("writer", "pump"):
        assert [each["n"] for each in by if each["by"] == party] == list(range(1, CHANGES + 1))

    items = [plain(item) for item in Reader(reader, name).all()]
    assert [item["revision"] for item in items] == list(range(1, newest + 1))
    asks(pump, "resend", stream, sub="all", resend_all=True)
    first, *again, last = (pump.next(PATIENCE) for _ in range(newest + 2))
    assert (first[1], last[1]) == (4, 5)
    assert [json.loads(frame[3][8]) for frame in again] == items
    assert [without_ttl(frame) for frame in again[1:]] == [without_ttl(frame) for frame in live]
    month = 30 * 86_400
    assert all(month - 2 * PATIENCE < frame[3][4] <= month for frame in (*live, *again)), (
        "what retention leaves of them"
    )

    told = [audience.next(PATIENCE) for _ in range(newest)]
    assert [(event["revision"], event["value"]) for event in told[1:]] == [
        (item["revision"], item["value"]) for item in items[1:]
    ]

    less = writer.ask_for(
        topic(name, "commands/modify", "policies"), "/entries/READER1/resources", {"thing:/attributes": EVERYTHING}
    )
    assert less["status"] == 204, less
    words = f"Not authorized to subscribe to stream {stream} and partition 0"
    refusal: Any = pump.next(PATIENCE)
    assert (refusal[1], refusal[3]["error"], refusal[3]["status"]) == (7, words, 403)
    asks(pump, "publish", stream, msg=json.dumps(modify(name, "/attributes/n", "unseen")))
    asks(pump, "publish", stream, msg=json.dumps(modify(name, "/definition", "a:b:1")))
    refusal = pump.next(PATIENCE)
    assert (refusal[1], refusal[3]["code"], refusal[3]["stream"]) == (7, "things:definition.notmodifiable", stream)
    assert audience.next(PATIENCE)["value"] == "unseen"
    assert pump.received.empty()
