"""Streamr's public clients work unmodified with a WebSocket listener of the service."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.contract.public_client import (
    MOST_REQUESTS,
    MOST_STREAMS,
    PUBLISHING,
    PublicClientBehaviors,
    broadcasts_of,
    each_version,
)
from tests.support.brokers import free_port
from tests.support.connection_documents import EVERYTHING, topic
from tests.support.public_client import VERSIONS, PublicClient
from tests.support.public_client.wire import Peer, Wire
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.node

OPERATOR = "acme:operator"
KEY = "a key of a pump"
STREAMR, ERRORS_AS_TEXT, TWINS = "/api/v1/ws", "/text/api/v1/ws", "/twins"


def document(port: int) -> dict[str, Any]:
    """Return a connection: clients use two paths with different encodings of errors, the operator a third."""
    kinds = {"open": "acme.site:open", "closed": "acme.site:closed"}
    streams = {f"{kind}-{n}": {"policyId": policy} for kind, policy in kinds.items() for n in range(MOST_STREAMS)}
    options = {"streams": streams, "authKeys": {"pump": hashlib.sha256(KEY.encode()).hexdigest()}}
    return {
        "id": "listener",
        "connectionType": "websocket",
        "connectionStatus": "open",
        "uri": f"ws://127.0.0.1:{port}",
        "mappingDefinitions": {
            "streams": {"mappingEngine": "Streamr", "options": options},
            "text": {"mappingEngine": "Streamr", "options": {**options, "errorPayload": "json-string"}},
        },
        "sources": [
            {"addresses": [STREAMR], "authorizationContext": ["acme:listener"], "payloadMapping": ["streams"]},
            {"addresses": [ERRORS_AS_TEXT], "authorizationContext": ["acme:listener"], "payloadMapping": ["text"]},
            {"addresses": [TWINS], "authorizationContext": [OPERATOR]},
        ],
    }


def ask_operator(port: int, command: dict[str, Any]) -> dict[str, Any]:
    """Send a Ditto command of the operator; return the response."""
    with connect(f"ws://127.0.0.1:{port}{TWINS}") as operator:
        operator.send(json.dumps({"headers": {"correlation-id": "c"}, "path": "/", **command}))
        answer: dict[str, Any] = json.loads(operator.recv(timeout=PATIENCE))
    return answer


def entries(subject: str, kind: str) -> dict[str, Any]:
    """Return policy entries: the operator may change the policy, `subject` and the key its resources."""
    owned = {"policy:/": EVERYTHING, "thing:/": EVERYTHING}
    return {
        "operator": {"subjects": {OPERATOR: {"type": "test"}}, "resources": owned},
        "clients": {
            "subjects": {subject: {"type": "test"}, "streamr:pump": {"type": "test"}},
            "resources": {f"{kind}:/": EVERYTHING},
        },
    }


def grant(port: int, name: str, subject: str) -> None:
    """A policy of streams."""
    value = {"policyId": f"acme.site:{name}", "entries": entries(subject, "stream")}
    answer = ask_operator(port, {"topic": topic(name, "commands/create", "policies"), "value": value})
    assert answer["status"] == 201, answer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    port = free_port()
    with ServiceProcess.start(tmp_path_factory.mktemp("service"), [document(port)]) as running:
        grant(port, "open", "streamr:anonymous")
        grant(port, "closed", "streamr:pump")
        yield running


@pytest.fixture
def listener(service: ServiceProcess) -> tuple[str, str]:
    """The address for clients, and a key that the listener knows."""
    written = json.loads((service.folder / "connections" / "listener.json").read_text(encoding="utf-8"))
    return f"{written['uri']}{STREAMR}", KEY


class TestService(PublicClientBehaviors):
    """With a service as a process."""


@pytest.mark.parametrize("version", PUBLISHING)
async def test_an_error_with_a_text_payload_is_shown_by_every_client_that_shows_errors(
    listener: tuple[str, str], version: str
) -> None:
    address = listener[0].replace(STREAMR, ERRORS_AS_TEXT)
    async with PublicClient.started(version, address) as client:
        await client.subscribe("a", stream="closed-0")
        await client.until(lambda: client.happened("error"))
        assert "Not authorized to subscribe to stream closed-0" in client.happened("error")[0]["text"]


async def test_a_client_follows_and_changes_a_thing(listener: tuple[str, str]) -> None:
    """Its messages are the thing's events, for changes by any client in any protocol."""
    port = int(listener[0].split(":")[2].split("/")[0])
    thing = {"_policy": {"entries": entries("streamr:anonymous", "thing")}, "attributes": {"level": 6}}
    change: dict[str, Any] = {"topic": topic("pump-7", "commands/modify"), "path": "/attributes/level"}
    assert ask_operator(port, {"topic": topic("pump-7", "commands/create"), "value": thing})["status"] == 201
    stream = "things/acme.site:pump-7"
    async with PublicClient.started("0.12.2", listener[0]) as client:
        await client.subscribe("a", stream=stream, resend_all=True)
        await client.until(lambda: client.happened("resent", "a"))
        assert ask_operator(port, {**change, "value": 7})["status"] == 204
        await client.until(lambda: client.offsets("a") == [1, 2])
        await client.publish(stream, {"headers": {}, **change, "value": 8})
        await client.until(lambda: client.offsets("a") == [1, 2, 3])
        assert [each["value"] for each in client.contents("a")[1:]] == [7, 8]
        assert [each["revision"] for each in client.contents("a")] == [1, 2, 3]
    kept = ask_operator(port, {"topic": topic("pump-7", "commands/retrieve"), "path": "/attributes/level"})
    assert kept["value"] == 8


async def test_a_client_that_follows_outlives_the_service(service: ServiceProcess, listener: tuple[str, str]) -> None:
    """The service is restarted after a kill; the client reconnects and requests the missed messages.

    A proxy is between them, because this client ends if its address has no listener.
    """
    stream = f"open-{MOST_STREAMS - 1}"
    async with Wire.to(listener[0]) as wire, PublicClient.started("0.12.2", wire.url) as client:
        await client.subscribe("a", stream=stream, resend_all=True)
        await client.until(lambda: client.happened("no_resend", "a"))
        async with Peer.at(listener[0]) as peer:
            published = await peer.publish(stream, {"v": 0}, {"v": 1})
            await client.until(lambda: client.offsets("a") == published)
            service.kill()
        service.start_again()
        async with Peer.at(listener[0]) as peer:
            published += await peer.publish(stream, {"v": 2}, {"v": 3})
            await client.until(lambda: len(client.offsets("a")) == 4)
        assert client.offsets("a") == published
        assert client.contents("a") == [{"v": n} for n in range(4)]


async def forget(service: ServiceProcess, peer: Peer, stream: str) -> None:
    """Erase the stream, and wait until a resend finds nothing."""
    erasure = {"entity": f"{stream}/0", "type": "stream", "by": "test"}
    assert service.ask("POST", "/api/2/erasures", erasure)[0] == 202
    while peer.frames[-1][1] != 6:
        ended = len([frame for frame in peer.frames if frame[1] in (5, 6)])
        await peer.ask("resend", stream=stream, sub="x", resend_all=True)
        await peer.until(lambda ended=ended: len([f for f in peer.frames if f[1] in (5, 6)]) > ended)  # type: ignore[misc]


async def no_flood(service: ServiceProcess, address: str, version: str, seconds: float, most: int) -> None:
    """Let a client miss an erased message: it sends at most `most` resend requests in these seconds."""
    stream = f"open-{MOST_STREAMS - 2 - VERSIONS.index(version)}"
    async with Wire.to(address) as wire, Peer.at(address) as peer, PublicClient.started(version, wire.url) as client:
        await client.subscribe("a", stream=stream)
        await client.until(lambda: client.happened("subscribed", "a"))
        first = await peer.publish(stream, {"v": 0})
        await client.until(lambda: client.offsets("a") == first)
        wire.loses = broadcasts_of({"v": 1})
        await peer.publish(stream, {"v": 1})
        await client.until(lambda: wire.lost)
        wire.flows.clear()
        await peer.publish(stream, {"v": 2})
        await forget(service, peer, stream)
        wire.flows.set()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        await client.until(lambda: loop.time() > end or len(wire.asked("resend")) > most, seconds + PATIENCE)
        assert 2 <= len(wire.asked("resend")) <= most


async def test_outcome_5_deleted_messages_do_not_cause_endless_resend_requests(
    service: ServiceProcess, listener: tuple[str, str]
) -> None:
    await no_flood(service, listener[0], "0.12.2", 5, 12)


@pytest.mark.soak(shard="public-clients")
@each_version
async def test_outcome_5_for_a_minute(service: ServiceProcess, listener: tuple[str, str], version: str) -> None:
    await no_flood(service, listener[0], version, 60, MOST_REQUESTS - 1)


async def test_a_client_receives_the_protocol_version_in_its_address(listener: tuple[str, str]) -> None:
    """Client 1.0.2 always does: its default address has the query."""
    stream = f"open-{MOST_STREAMS - 1}"
    async with Wire.to(listener[0]) as wire, Peer.at(listener[0]) as peer:
        url = f"{wire.url}?controlLayerVersion=0&messageLayerVersion=29"
        stored = await peer.publish(stream, {"v": 0})
        async with PublicClient.started("1.0.2", url) as client:
            await client.subscribe("a", stream=stream, resend_all=True)
            await client.until(lambda: client.happened("resent", "a"))
            live = await peer.publish(stream, {"v": 1})
            await client.until(lambda: client.offsets("a")[-2:] == [*stored, *live])
        assert {frame[3][0] for frame in wire.frames if frame[1] in (0, 1)} == {29}
        assert {frame[3][0] for frame in peer.frames if frame[1] == 0} == {28}
