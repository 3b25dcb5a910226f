"""The binary protocol of reactive-streams-io through a WebSocket door: binary messages both ways, each socket a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection

from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.frames import CORE, Frame, OnComplete, OnNext, ServerHello
from mappings.reactive_streams_io.limits import Limits
from tests.connectivity.brokers.doors import PATIENCE
from tests.connectivity.brokers.house import House
from tests.connectivity.quay import HISTORY, OWNER, H, Quay, definition, octets, revisions, subscribe

PATH = "/streams"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    quay = await Quay.filled(revisions=3)
    source = {"addresses": [PATH], "authorizationContext": [OWNER], "payloadMapping": ["rsio"]}
    made = House(quay, sources=[source], mappingDefinitions=definition())
    await made.open()
    yield made
    await made.close()


async def conversation(client: ClientConnection) -> list[Frame]:
    """What a client hears who asks for a whole history."""
    await client.send(octets(H, subscribe(HISTORY, 1, 10)))
    reader, found = Decoder(Limits(), CORE | {0x02}, 0x02, {}), list[Frame]()
    while not any(isinstance(frame, OnComplete) for frame in found):
        message = await asyncio.wait_for(client.recv(), PATIENCE)
        assert isinstance(message, bytes), "octets are sent as binary messages"
        found += reader.feed(message)
    return found


async def test_a_history_comes_whole_to_each_socket_that_asks_for_it(house: House) -> None:
    for client in (await house.client(PATH), await house.client(PATH)):
        said = await conversation(client)
        assert isinstance(said[0], ServerHello)
        assert revisions([frame.element for frame in said if isinstance(frame, OnNext)]) == [1, 2, 3]
