"""Streamr through a WebSocket listener, for its public clients: every socket is a session.

Case numbers are those of the protocol's behavior tests. `tests/unit/connectivity/sessions/streamr` has them all; these tests
are about the listener: frames in order, separate sockets, versions in the query, noise.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from tests.support.in_process.streamr import (
    OPERATOR,
    Frame,
    StreamrHarness,
    definition,
    error,
    offsets,
    publish,
    resend,
    subscribe,
    subscribed,
    unsubscribe,
    unsubscribed,
)
from tests.support.in_process.websocket_service import WebSocketService, receive_json
from tests.support.wait import wait_until

PATH = "/api/v1/ws"
VERSIONS = "controlLayerVersion=0&messageLayerVersion"


@pytest.fixture
async def websocket_service() -> AsyncIterator[WebSocketService]:
    streamr_harness = await StreamrHarness.filled(messages=3)
    source = {"addresses": [PATH], "authorizationContext": [OPERATOR], "payloadMapping": ["tanks"]}
    made = WebSocketService(streamr_harness, sources=[source], mappingDefinitions=definition())
    await made.open()
    yield made
    await made.close()


async def send(client: ClientConnection, *requests: dict[str, Any]) -> None:
    for request in requests:
        await client.send(json.dumps(request))


async def frames(client: ClientConnection, number: int) -> list[Frame]:
    return [await receive_json(client) for _ in range(number)]


async def assert_no_more_frames(client: ClientConnection) -> None:
    """Check that no frame came before the response to a new request."""
    await send(client, unsubscribe(stream="never-followed"))
    assert "never-followed" in str(await receive_json(client))


def contents(found: Sequence[Frame]) -> list[str]:
    return [frame[3][8] for frame in found]


async def test_cases_s01_to_s05_a_published_message_reaches_all_subscribers(
    websocket_service: WebSocketService,
) -> None:
    first, second = await websocket_service.client(PATH), await websocket_service.client(PATH)
    await send(first, subscribe())
    assert await receive_json(first) == subscribed()
    await send(second, subscribe())
    assert await receive_json(second) == subscribed()
    await send(second, publish('{"v":1}'), publish('{"v":2}'))
    [one, two] = await frames(first, 2)
    assert await frames(second, 2) == [one, two]
    assert contents([one, two]) == ['{"v":1}', '{"v":2}']
    assert offsets([one, two]) == [4, 5]
    assert [frame[3][6] for frame in (one, two)] == [3, 4]
    await assert_no_more_frames(first)


async def test_messages_of_a_socket_with_a_correlation_id_in_its_opening_request_are_all_stored(
    websocket_service: WebSocketService,
) -> None:
    address = f"ws://127.0.0.1:{websocket_service.port}{PATH}"
    client = await connect(address, additional_headers={"correlation-id": "c-1"}, proxy=None)
    websocket_service.keep(client)
    await send(client, publish("4"), publish("5"), resend(resend_from=4))
    assert contents((await frames(client, 4))[1:3]) == ["4", "5"]


async def test_case_s13_requests_back_to_back_are_answered_in_their_order(websocket_service: WebSocketService) -> None:
    client = await websocket_service.client(PATH)
    await send(client, subscribe(), unsubscribe(), subscribe())
    assert await frames(client, 3) == [subscribed(), unsubscribed(), subscribed()]


async def test_case_r01_all_is_sent_again_in_its_order(websocket_service: WebSocketService) -> None:
    client = await websocket_service.client(PATH)
    await send(client, resend("a", resend_all=True))
    begun, *messages, ended = await frames(client, 5)
    about = {"stream": "tank", "partition": 0, "sub": "a"}
    assert (begun, ended) == ([0, 4, "", about], [0, 5, "", about])
    assert offsets(messages, 1) == [1, 2, 3]
    assert {frame[2] for frame in messages} == {"a"}


async def test_case_b01_each_socket_is_a_session_of_its_own(websocket_service: WebSocketService) -> None:
    first, second = await websocket_service.client(PATH), await websocket_service.client(PATH)
    await send(first, subscribe())
    assert await receive_json(first) == subscribed()
    await send(second, unsubscribe())
    assert "error" in error(await receive_json(second))
    await send(second, publish())
    assert offsets([await receive_json(first)]) == [4]
    await assert_no_more_frames(second)


@pytest.mark.parametrize("noise", ["not json", "null", "[]", "7", "", b"\xff\x00"])
async def test_case_x01_noise_is_answered_and_the_next_frame_is_served(
    websocket_service: WebSocketService, noise: str | bytes
) -> None:
    client = await websocket_service.client(PATH)
    await client.send(noise)
    assert error(await receive_json(client))["error"]
    await send(client, subscribe())
    assert await receive_json(client) == subscribed()


async def test_a_frame_that_is_too_large_is_answered_and_the_next_one_is_served(
    websocket_service: WebSocketService,
) -> None:
    client = await websocket_service.client(PATH)
    await send(client, publish('"' + "x" * (1 << 16) + '"'), subscribe())
    assert error(await receive_json(client))["error"]
    assert await receive_json(client) == subscribed()


async def test_case_x04_a_request_of_another_version_is_answered(websocket_service: WebSocketService) -> None:
    client = await websocket_service.client(PATH)
    await send(client, subscribe(version=1))
    assert "version" in error(await receive_json(client))["error"].lower()


@pytest.mark.parametrize(
    ("query", "version", "items"),
    [("", 28, 9), (f"?{VERSIONS}=28", 28, 9), (f"?{VERSIONS}=29", 29, 12), ("?version=30", 28, 9)],
)
async def test_versions_a_socket_receives_messages_of_the_versions_in_its_query(
    websocket_service: WebSocketService, query: str, version: int, items: int
) -> None:
    client, plain = await websocket_service.client(PATH + query), await websocket_service.client(PATH)
    for each in (client, plain):
        await send(each, subscribe())
        assert await receive_json(each) == subscribed()
    await send(client, publish(), resend("a", resend_last=1))
    sent = {frame[1]: frame[3] for frame in await frames(client, 4)}
    assert set(sent) == {0, 4, 1, 5}
    assert [(sent[type][0], len(sent[type])) for type in (0, 1)] == [(version, items)] * 2
    received = await receive_json(plain)
    assert (received[3][0], len(received[3])) == (28, 9)


@pytest.mark.parametrize("query", [f"{VERSIONS}=30", "controlLayerVersion=1&messageLayerVersion=28"])
async def test_unsupported_versions_are_refused_with_http_400(websocket_service: WebSocketService, query: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await websocket_service.client(f"{PATH}?{query}")
    assert refused.value.response.status_code == 400


async def test_a_session_ends_with_its_socket(websocket_service: WebSocketService) -> None:
    leaving, staying = await websocket_service.client(PATH), await websocket_service.client(PATH)
    for client in (leaving, staying):
        await send(client, subscribe())
        assert await receive_json(client) == subscribed()
    assert len(list(websocket_service.harness.streams)) == 2
    await leaving.close()
    await wait_until(lambda: len(list(websocket_service.harness.streams)) == 1)
    await send(staying, publish())
    assert offsets([await receive_json(staying)]) == [4]


async def test_a_session_that_sends_no_request_lasts_as_long_as_its_socket(
    websocket_service: WebSocketService,
) -> None:
    """Clients of the protocol send no request while their subscription works."""
    client = await websocket_service.client(PATH)
    await send(client, subscribe())
    assert await receive_json(client) == subscribed()
    websocket_service.harness.clock.advance(2 * 3600)
    websocket_service.harness.sweep_sessions()
    publisher = await websocket_service.client(PATH)
    await send(publisher, publish())
    assert offsets([await receive_json(client)]) == [4]


@pytest.mark.usefixtures("harnesses")
async def test_no_session_of_a_socket_outlives_a_crash_of_the_service() -> None:
    source = {"addresses": [PATH], "authorizationContext": [OPERATOR], "payloadMapping": ["tanks"]}
    first = WebSocketService(await StreamrHarness.filled(), sources=[source], mappingDefinitions=definition())
    await first.open()
    client = await first.client(PATH)
    await send(client, subscribe())
    assert await receive_json(client) == subscribed()
    rows = first.harness.kept.crashed()
    assert rows.written
    await client.close()
    await first.supervisor.close()
    await first.harness.store.commits.barrier()
    harness = StreamrHarness(journal=first.harness.journal, kept=rows)
    second = WebSocketService(harness, sources=[source], mappingDefinitions=definition())
    await second.open()
    assert (list(harness.streams), rows.written) == ([], {})
    await second.supervisor.close()


async def test_a_session_of_all_sockets_at_a_path_ends_after_the_idle_timeout() -> None:
    source = {
        "addresses": [PATH],
        "authorizationContext": [OPERATOR],
        "payloadMapping": ["tanks"],
        "replyTarget": {"address": PATH},
    }
    service = WebSocketService(await StreamrHarness.filled(), sources=[source], mappingDefinitions=definition())
    await service.open()
    client = await service.client(PATH)
    await send(client, subscribe())
    assert await receive_json(client) == subscribed()
    service.harness.clock.advance(2 * 3600)
    service.harness.sweep_sessions()
    assert not list(service.harness.streams)
    await service.close()
