"""Connection documents and twins for tests of the whole service."""

from __future__ import annotations

from typing import Any, Protocol

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient, Party

EVERYTHING = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}


def source(name: str, *subjects: str, **more: Any) -> dict[str, Any]:
    """A source on `<name>/ask` that answers on `<name>/answers`."""
    return {
        "addresses": [f"{name}/ask"],
        "qos": 1,
        "authorizationContext": list(subjects),
        "replyTarget": {"address": f"{name}/answers"},
        **more,
    }


class HostAndPort(Protocol):
    """A broker, or a proxy before it."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


def connection(broker: HostAndPort, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An open MQTT 3.1.1 connection with these sources."""
    return {
        "id": "site",
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": f"tcp://{broker.host}:{broker.port}",
        "sources": list(sources),
        **more,
    }


def client(broker: Mosquitto, name: str, **more: Any) -> MqttClient:
    """The party that speaks through the source of this name."""
    return MqttClient(broker.host, broker.port, ask=f"{name}/ask", answers=f"{name}/answers", **more)


def policy_for(owner: str, **readers: dict[str, Any]) -> dict[str, Any]:
    """A policy in which `owner` may do everything; each reader (`acme_reader` means `acme:reader`) has its resources."""
    entries: dict[str, Any] = {
        "OWNER": {
            "subjects": {owner: {"type": "test"}},
            "resources": {"thing:/": EVERYTHING, "policy:/": EVERYTHING, "message:/": EVERYTHING},
        }
    }
    for number, (reader, resources) in enumerate(readers.items()):
        entries[f"READER{number}"] = {
            "subjects": {reader.replace("_", ":", 1): {"type": "test"}},
            "resources": resources,
        }
    return {"entries": entries}


def topic(name: str, rest: str, group: str = "things/twin") -> str:
    """`acme.site/<name>/things/twin/<rest>`."""
    return f"acme.site/{name}/{group}/{rest}"


class Reader:
    """One subscriber's side of a streaming subscription."""

    def __init__(self, client: Party, name: str, value: Any = None, group: str = "things/twin", **more: Any) -> None:
        self.client, self.name, self.group = client, name, group
        self.created = client.ask_for(topic(name, "streaming/subscribeForPersistedEvents", group), value=value, **more)
        self.id: str = self.created["value"]["subscriptionId"]

    def request(self, demand: Any, **headers: Any) -> str:
        return self.client.command(
            topic(self.name, "streaming/request", self.group),
            value={"subscriptionId": self.id, "demand": demand},
            headers=headers,
        )

    def cancel(self) -> str:
        return self.client.command(topic(self.name, "streaming/cancel", self.group), value={"subscriptionId": self.id})

    def all(self, demand: int = 1_000_000) -> list[dict[str, Any]]:
        """Request everything: the items, after `complete` has come."""
        self.request(demand)
        *events, last = self.client.until("complete")
        assert last["value"] == {"subscriptionId": self.id}
        # Answers of which a link that is gone has not brought the confirmation come once more, in between.
        return [event["value"]["item"] for event in events if event["topic"].endswith("/next")]
