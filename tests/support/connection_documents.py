"""Connection documents and twins for tests of the whole service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import yaml

from connectivity.connections.model import Connection
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import BrokerClient, MqttClient
from tests.support.paths import ROOT
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

CONNECTIONS = "/api/2/connections"

EVERYTHING = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}


def masked_document(connection: Connection) -> dict[str, Any]:
    """Return the document of a connection with all secrets masked."""
    return connection.model_dump(mode="json", by_alias=True, exclude_none=True)


def source(name: str, *subjects: str, **more: Any) -> dict[str, Any]:
    """Return a source on `<name>/ask` with its responses on `<name>/answers`."""
    return {
        "addresses": [f"{name}/ask"],
        "qos": 1,
        "authorizationContext": list(subjects),
        "replyTarget": {"address": f"{name}/answers"},
        **more,
    }


class HostAndPort(Protocol):
    """A broker, or a proxy in front of it."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


def connection(broker: HostAndPort, *sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the document of an open MQTT 3.1.1 connection with these sources."""
    return {
        "id": "site",
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": f"tcp://{broker.host}:{broker.port}",
        "sources": list(sources),
        **more,
    }


@contextmanager
def added(service: ServiceProcess, *documents: dict[str, Any], connected: bool = True) -> Iterator[None]:
    """Add connections to a running service through its API, and delete them at the end.

    Waits until each is open, unless `connected` is false.
    """
    try:
        for document in documents:
            status, answer = service.ask("PUT", f"{CONNECTIONS}/{document['id']}", document)
            assert status == 201, answer
        if connected:
            wait_until_open(service, *(document["id"] for document in documents))
        yield
    finally:
        for document in documents:
            service.ask("DELETE", f"{CONNECTIONS}/{document['id']}")


@asynccontextmanager
async def while_added(
    service: ServiceProcess, *documents: dict[str, Any], connected: bool = True
) -> AsyncIterator[None]:
    """`added` for tests with an event loop."""
    adding = added(service, *documents, connected=connected)
    await asyncio.to_thread(adding.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(adding.__exit__, None, None, None)


def wait_until_open(service: ServiceProcess, *connection_ids: str) -> None:
    """Wait until each of these connections is open."""
    wait_until_sync(lambda: all(service.status(each).get("status") == "open" for each in connection_ids))


def running(service: ServiceProcess) -> ServiceProcess:
    """Start the service of a module again if the previous test has stopped it, and return it."""
    if service.process is None or service.process.poll() is not None:
        service.start_again()
    return service


def client(broker: Mosquitto, name: str, **more: Any) -> MqttClient:
    """Return a client of the source with this name."""
    return MqttClient(broker.host, broker.port, ask=f"{name}/ask", answers=f"{name}/answers", **more)


def policy_for(owner: str, **readers: dict[str, Any]) -> dict[str, Any]:
    """Return a policy: `owner` has all permissions, and each reader those of its keyword.

    `acme_reader={"thing:/": READ}` grants `acme:reader` the permission to read.
    """
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
    """Return `acme.site/<name>/things/twin/<rest>`."""
    return f"acme.site/{name}/{group}/{rest}"


class Reader:
    """The client of a streaming subscription."""

    def __init__(
        self, client: BrokerClient, name: str, value: Any = None, group: str = "things/twin", **more: Any
    ) -> None:
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
        """Request all items, wait for `complete`, and return them."""
        self.request(demand)
        *events, last = self.client.until("complete")
        assert last["value"] == {"subscriptionId": self.id}
        # Messages whose acknowledgement was lost with a link come again, in between.
        return [event["value"]["item"] for event in events if event["topic"].endswith("/next")]


def example(name: str) -> dict[str, Any]:
    """Return a connection of `examples/connections`."""
    text = (ROOT / "examples" / "connections" / f"{name}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document
