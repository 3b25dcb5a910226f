"""A Ditto conversation through a WebSocket listener: commands, errors, subscriptions, a target.

The clients are real ones of the library `websockets`; the whole service is in this process.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.in_process.service import OWNER, ConnectionHarness, creation, streaming, turn
from tests.support.in_process.websocket_listener import token_entry
from tests.support.in_process.websocket_service import WebSocketService, receive_json, request_json
from tests.support.wait import PATIENCE, wait_until

STRANGER = "acme:stranger"
OPTIONS = {"tokens": f"{token_entry(OWNER, 'owners')}, {token_entry(STRANGER, 'strangers')}"}


@pytest.fixture
async def websocket_service() -> AsyncIterator[WebSocketService]:
    source = {"addresses": ["/twins"], "authorizationContext": ["{{ header:websocket.user }}"]}
    target = {"address": "/alarms", "topics": ["_/_/things/twin/events"], "authorizationContext": [OWNER]}
    made = WebSocketService(ConnectionHarness(), options=OPTIONS, sources=[source], targets=[target])
    await made.open()
    yield made
    await made.close()


async def test_a_client_makes_a_twin_changes_it_and_replays_its_past(websocket_service: WebSocketService) -> None:
    client = await websocket_service.client(token="owners")
    made = await request_json(client, creation(correlation_id="made"))
    assert (made["status"], made["headers"]["correlation-id"]) == (201, "made")
    for number in range(3):
        assert (await request_json(client, turn(number, correlation_id=str(number))))["status"] in (201, 204)
    created = await request_json(client, streaming("subscribeForPersistedEvents", correlation_id="replay"))
    identifier = created["value"]["subscriptionId"]
    await client.send(streaming("request", {"subscriptionId": identifier, "demand": 2}).decode())
    first, second = [await receive_json(client) for _ in range(2)]
    assert [each["value"]["item"]["revision"] for each in (first, second)] == [1, 2]
    await client.send(streaming("request", {"subscriptionId": identifier, "demand": 10}).decode())
    rest = [await receive_json(client) for _ in range(3)]
    assert [each["value"]["item"]["revision"] for each in rest[:2]] == [3, 4]
    assert rest[2]["topic"].endswith("/streaming/complete")


async def test_each_client_gets_its_own_answers_under_its_own_subject(websocket_service: WebSocketService) -> None:
    owner, stranger = await websocket_service.client(token="owners"), await websocket_service.client(token="strangers")
    assert (await request_json(owner, creation()))["status"] == 201
    refused = await request_json(stranger, turn(True, correlation_id="mine"))
    assert (refused["status"], refused["headers"]["correlation-id"]) == (404, "mine")
    assert (await request_json(owner, turn(True)))["status"] == 201


async def test_a_subscription_belongs_to_one_peer(websocket_service: WebSocketService) -> None:
    owner, stranger = await websocket_service.client(token="owners"), await websocket_service.client(token="strangers")
    assert (await request_json(owner, creation()))["status"] == 201
    identifier = (await request_json(owner, streaming("subscribeForPersistedEvents")))["value"]["subscriptionId"]
    answer = await request_json(stranger, streaming("request", {"subscriptionId": identifier, "demand": 1}))
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
async def test_an_unreadable_message_gets_an_error_and_the_next_message_is_served(
    websocket_service: WebSocketService, message: str | bytes, error: str
) -> None:
    client = await websocket_service.client(token="owners")
    await client.send(message)
    assert (await receive_json(client))["value"]["error"] == error
    assert (await request_json(client, creation()))["status"] == 201


async def test_events_go_to_all_peers_at_the_path_of_a_target(websocket_service: WebSocketService) -> None:
    """As everywhere, not those that came in by the same connection."""
    listeners = [await websocket_service.client("/alarms", "owners") for _ in range(2)]
    await listeners[0].send("nobody listens at a path of targets alone")
    assert (await request_json(await websocket_service.client(token="owners"), creation("lamp-8")))["status"] == 201
    await websocket_service.harness.has_lamp()
    await websocket_service.harness.ask(turn(True))
    for listener in listeners:
        assert (await receive_json(listener))["topic"].endswith("/events/created")
        assert (await receive_json(listener))["value"] is True


async def test_closing_the_connection_lets_the_answers_out_first(websocket_service: WebSocketService) -> None:
    client = await websocket_service.client(token="owners")
    websocket_service.harness.disk.hold()
    await client.send(creation(correlation_id="last").decode())
    await wait_until(lambda: len(websocket_service.harness.dispatcher._submitted) > 0)
    websocket_service.harness.disk.release()
    await websocket_service.supervisor.close(drain=PATIENCE)
    assert (await receive_json(client))["headers"]["correlation-id"] == "last"
    await client.wait_closed()
    assert client.close_code == 1001


async def test_the_subscriptions_of_a_client_end_when_it_leaves(websocket_service: WebSocketService) -> None:
    """Also while events wait for the client; other subscriptions continue."""
    staying, leaving = await websocket_service.client(token="owners"), await websocket_service.client(token="owners")
    assert (await request_json(staying, creation()))["status"] == 201
    kept = (await request_json(staying, streaming("subscribeForPersistedEvents")))["value"]["subscriptionId"]
    assert "subscriptionId" in (await request_json(leaving, streaming("subscribeForPersistedEvents")))["value"]
    await leaving.close()
    await wait_until(lambda: len(list(websocket_service.harness.streams)) == 1)
    event = await request_json(staying, streaming("request", {"subscriptionId": kept, "demand": 1}))
    assert event["value"]["item"]["revision"] == 1
