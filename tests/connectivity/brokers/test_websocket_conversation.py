"""A Ditto conversation through a WebSocket door, whole: commands, errors, a subscription's events, a target at a path.

The clients are real ones of the library `websockets`; the service is all there, in this process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from connectivity.lifecycle import Status
from connectivity.supervisor import Supervisor
from tests.brokers import free_port
from tests.connectivity.brokers.doors import PATIENCE, door, token_entry
from tests.connectivity.running import AT_ONCE
from tests.connectivity.site import NOW, OWNER, Site, creation, streaming, turn
from tests.helpers import wait_until

STRANGER = "acme:stranger"
OPTIONS = {"tokens": f"{token_entry(OWNER, 'owners')}, {token_entry(STRANGER, 'strangers')}"}


class House:
    """A service with one door, whose subjects are the names of tokens."""

    def __init__(self, **more: Any) -> None:
        self.site = Site()
        self.port = free_port()
        source = {"addresses": ["/twins"], "authorizationContext": ["{{ header:websocket.user }}"]}
        target = {"address": "/alarms", "topics": ["_/_/things/twin/events"], "authorizationContext": [OWNER]}
        self.connection = door(self.port, options=OPTIONS, sources=[source], targets=[target], **more)
        self.supervisor = Supervisor(
            self.connection,
            self.site.dispatcher,
            self.site.store,
            self.site.monitor,
            pauses=AT_ONCE,
            max_payload=1 << 16,
            now=lambda: NOW,
        )
        self._clients: list[ClientConnection] = []

    async def open(self) -> None:
        self.supervisor.open()
        await wait_until(lambda: self.supervisor.status is Status.OPEN, PATIENCE)

    async def client(self, token: str = "owners", path: str = "/twins") -> ClientConnection:
        made = await connect(
            f"ws://127.0.0.1:{self.port}{path}",
            additional_headers={"Authorization": f"Bearer {token}"},
            proxy=None,
            open_timeout=PATIENCE,
        )
        self._clients.append(made)
        return made

    async def close(self) -> None:
        await self.supervisor.close()
        for client in self._clients:
            await client.close()
        await self.site.close()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    await made.open()
    yield made
    await made.close()


async def heard(client: ClientConnection) -> dict[str, Any]:
    message = await asyncio.wait_for(client.recv(), PATIENCE)
    assert isinstance(message, str), "JSON is sent as text"
    found: dict[str, Any] = json.loads(message)
    return found


async def asked(client: ClientConnection, command: bytes) -> dict[str, Any]:
    await client.send(command.decode())
    return await heard(client)


async def test_a_client_makes_a_twin_changes_it_and_replays_its_past(house: House) -> None:
    client = await house.client()
    made = await asked(client, creation(correlation_id="made"))
    assert (made["status"], made["headers"]["correlation-id"]) == (201, "made")
    for number in range(3):
        assert (await asked(client, turn(number, correlation_id=str(number))))["status"] in (201, 204)
    created = await asked(client, streaming("subscribeForPersistedEvents", correlation_id="replay"))
    identifier = created["value"]["subscriptionId"]
    await client.send(streaming("request", {"subscriptionId": identifier, "demand": 2}).decode())
    first, second = [await heard(client) for _ in range(2)]
    assert [each["value"]["item"]["revision"] for each in (first, second)] == [1, 2]
    await client.send(streaming("request", {"subscriptionId": identifier, "demand": 10}).decode())
    rest = [await heard(client) for _ in range(3)]
    assert [each["value"]["item"]["revision"] for each in rest[:2]] == [3, 4]
    assert rest[2]["topic"].endswith("/streaming/complete")


async def test_each_client_gets_its_own_answers_under_its_own_subject(house: House) -> None:
    owner, stranger = await house.client(), await house.client("strangers")
    assert (await asked(owner, creation()))["status"] == 201
    refused = await asked(stranger, turn(True, correlation_id="mine"))
    assert (refused["status"], refused["headers"]["correlation-id"]) == (403, "mine")
    assert (await asked(owner, turn(True)))["status"] == 201


async def test_a_subscription_is_nobody_elses(house: House) -> None:
    owner, stranger = await house.client(), await house.client("strangers")
    assert (await asked(owner, creation()))["status"] == 201
    identifier = (await asked(owner, streaming("subscribeForPersistedEvents")))["value"]["subscriptionId"]
    answer = await asked(stranger, streaming("request", {"subscriptionId": identifier, "demand": 1}))
    assert answer["topic"].endswith("/streaming/failed")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("not json", "json.invalid"),
        ("", "connectivity:message.mapping.failed"),
        (b"\xff\xfe", "json.invalid"),
        (json.dumps({"topic": "x", "path": "/" + "y" * (1 << 16)}), "connectivity:message.toolarge"),
    ],
)
async def test_what_cannot_be_read_is_answered_and_the_next_message_is_served(
    house: House, message: str | bytes, error: str
) -> None:
    client = await house.client()
    await client.send(message)
    assert (await heard(client))["value"]["error"] == error
    assert (await asked(client, creation()))["status"] == 201


async def test_events_go_to_everybody_at_the_path_of_a_target(house: House) -> None:
    """As everywhere, not those that came in by the same connection."""
    listeners = [await house.client(path="/alarms") for _ in range(2)]
    await listeners[0].send("nobody listens at a path of targets alone")
    assert (await asked(await house.client(), creation("lamp-8")))["status"] == 201
    await house.site.has_lamp()
    await house.site.ask(turn(True))
    for listener in listeners:
        assert (await heard(listener))["topic"].endswith("/events/created")
        assert (await heard(listener))["value"] is True


async def test_closing_the_connection_lets_the_answers_out_first(house: House) -> None:
    client = await house.client()
    house.site.disk.hold()
    await client.send(creation(correlation_id="last").decode())
    await wait_until(lambda: len(house.site.dispatcher._submitted) > 0, PATIENCE)
    house.site.disk.release()
    await house.supervisor.close(drain=PATIENCE)
    assert (await heard(client))["headers"]["correlation-id"] == "last"
    await client.wait_closed()
    assert client.close_code == 1001


async def test_the_subscriptions_of_a_client_end_when_it_leaves(house: House) -> None:
    """Also while its events wait for it; nobody else's end."""
    staying, leaving = await house.client(), await house.client()
    assert (await asked(staying, creation()))["status"] == 201
    kept = (await asked(staying, streaming("subscribeForPersistedEvents")))["value"]["subscriptionId"]
    assert "subscriptionId" in (await asked(leaving, streaming("subscribeForPersistedEvents")))["value"]
    await leaving.close()
    await wait_until(lambda: len(list(house.site.streams)) == 1, PATIENCE)
    event = await asked(staying, streaming("request", {"subscriptionId": kept, "demand": 1}))
    assert event["value"]["item"]["revision"] == 1
