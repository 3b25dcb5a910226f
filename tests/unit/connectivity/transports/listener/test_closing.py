"""A listener whose closing is canceled, such as when its connection is closed while its link ends."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing, suppress

import pytest

from connectivity.connections.model import Connection
from connectivity.transports.listener import link as link_module
from connectivity.transports.tcp.connection_type import listen
from tests.support.brokers import free_port
from tests.support.wait import wait_until


@pytest.mark.parametrize("turns", range(6))
async def test_a_canceled_close_still_frees_the_port_and_the_sockets(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "FAREWELL", 0.1)
    port = free_port()
    connection = Connection.model_validate(
        {
            "id": "lab",
            "connectionType": "tcp",
            "connectionStatus": "open",
            "uri": f"tcp://127.0.0.1:{port}",
            "sources": [{"addresses": ["in"], "authorizationContext": ["acme:line"]}],
        }
    )
    link = await listen(connection)
    # It does not close its side when the listener says goodbye.
    with closing(socket.create_connection(("127.0.0.1", port))):
        await wait_until(lambda: link.peers)
        ending = asyncio.create_task(link.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending
        await link.close()
        await wait_until(lambda: not link.peers)
        await (await listen(connection)).close()
