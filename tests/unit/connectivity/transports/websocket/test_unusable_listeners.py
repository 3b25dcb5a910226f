"""Listeners that cannot be opened report the reason."""

from __future__ import annotations

import pytest
import trustme

from connectivity.errors import ConnectionRefused, Detail, NotConnected
from connectivity.transports import load_connection_type
from tests.support.brokers import free_port
from tests.support.in_process.websocket_listener import key_of, listener_connection, own


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize(
    ("uri", "kind", "detail"),
    [
        ("ws://no-such-host.invalid:8765", NotConnected, Detail.UNKNOWN_HOST),
        ("ws://depot..example:8765", NotConnected, Detail.UNKNOWN_HOST),
        ("ws://192.0.2.1:8765", NotConnected, Detail.REFUSED),
    ],
)
async def test_an_address_that_cannot_be_listened_at_is_reported(
    uri: str, kind: type[Exception], detail: Detail
) -> None:
    broker = load_connection_type("websocket")
    for attempt in (
        broker.connect(listener_connection(1, uri=uri)),
        broker.examine(listener_connection(1, uri=uri), "x-dry-run"),
    ):
        with pytest.raises(kind) as refused:
            await attempt
        assert isinstance(refused.value, NotConnected)
        assert refused.value.detail is detail


async def test_an_unusable_certificate_is_reported(authority: trustme.CA) -> None:
    broker = load_connection_type("websocket")
    one, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    for credentials in (None, {**own(one), "key": key_of(other)}):
        with pytest.raises(ConnectionRefused) as refused:
            await broker.connect(listener_connection(1, uri=f"wss://localhost:{free_port()}", credentials=credentials))
        assert refused.value.detail is Detail.CERTIFICATE
        assert "PRIVATE" not in str(refused.value)
