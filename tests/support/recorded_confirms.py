"""The confirms that a sans-IO MQTT client reads, whether or not it has sent the messages."""

from __future__ import annotations

from typing import Any, cast

from connectivity.transports.base import ReaderStatus, ignore_outcome
from connectivity.transports.mqtt.paho_client import SansIoPahoClient, UnconfirmedMessage


class _EveryMessage(dict[int, UnconfirmedMessage]):
    """All packet identifiers, as if a message with each were unconfirmed; its address is the identifier."""

    def pop(self, mid: int, _default: Any = None) -> UnconfirmedMessage:
        return UnconfirmedMessage(str(mid), ignore_outcome)


def record_confirms(client: SansIoPahoClient) -> list[tuple[int, int]]:
    """Return the list to which the client's confirms are added: packet identifier and reason code."""
    confirmed: list[tuple[int, int]] = []
    client.unconfirmed = _EveryMessage()
    client.reader_statuses = {reason: cast(ReaderStatus, reason) for reason in range(256)}
    client.on_readers = lambda mid, reason: confirmed.append((int(mid), cast(int, reason)))
    return confirmed
