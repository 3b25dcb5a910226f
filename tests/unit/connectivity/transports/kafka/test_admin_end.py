"""The end of a link's admin client: the library resolves names with it for as long as it exists."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka.admin import AdminClient

from connectivity.connections.model import Connection
from connectivity.errors import NotConnected
from connectivity.transports.kafka import connector
from tests.support.brokers import free_port
from tests.support.wait import wait_until


async def test_the_admin_client_of_a_failed_attempt_ends_in_a_thread_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deleting it waits for the library's threads, which may be waiting for a name server."""
    ended_in: list[threading.Thread] = []

    class ObservedAdminClient(AdminClient):
        def __del__(self) -> None:
            ended_in.append(threading.current_thread())

    async def reachable(_patience: float) -> None:
        pass

    monkeypatch.setattr(connector, "AdminClient", ObservedAdminClient)
    monkeypatch.setattr(connector, "handshake", lambda *_: reachable(0))
    address = f"127.0.0.1:{free_port()}"
    document = {
        "id": "lab",
        "connectionType": "kafka",
        "connectionStatus": "open",
        "uri": f"tcp://{address}",
        "specificConfig": {"bootstrapServers": address},
        "sources": [{"addresses": ["asked"], "qos": 1, "authorizationContext": ["lab:all"]}],
    }
    # The status of the connection keeps the error, and the error the frames of the attempt.
    with pytest.raises(NotConnected) as kept:
        await connector.connect(Connection.model_validate(document), patience=0.5)
    await wait_until(lambda: bool(ended_in))
    assert kept.value.__traceback__ is not None
    assert ended_in[0] is not threading.current_thread()
