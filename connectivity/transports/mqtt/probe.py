"""Checks the addresses of an MQTT connection with a client that leaves no state behind.

It has a client ID of its own and a session that ends with its link, so no persistent session is taken over; it has no
last will. It subscribes as a link does, to shared filters in a group of its own, so that the broker delivers copies and
takes no messages from other clients. It acknowledges nothing.

A broker does not report on addresses to publish to before it receives a message, and a connection test sends none.
"""

from __future__ import annotations

from connectivity.connections.model import Connection
from connectivity.connections.templates import has_expression
from connectivity.errors import ConnectionRefused
from connectivity.transports.base import RESOLVED_PER_MESSAGE, AddressCheck, ProbeReport
from connectivity.transports.mqtt.async_client import AsyncMqttClient
from connectivity.transports.mqtt.connector import NO_SHARED, log_in
from connectivity.transports.mqtt.options import Options
from connectivity.transports.mqtt.paho_client import PACKET_ROOM, SansIoPahoClient
from connectivity.transports.mqtt.properties import ServerLimits
from connectivity.transports.mqtt.protocol_version import ProtocolVersion
from connectivity.transports.mqtt.topics import SHARED

WINDOW = 1
"""Deliveries that a broker of MQTT 5 may send; they are not acknowledged."""

CHECKED_WHEN_SENT = "an MQTT broker checks the permission to publish only when a message is sent"


async def examine(dialect: ProtocolVersion, connection: Connection, name: str) -> ProbeReport:
    """Check the addresses of a connection (see `connectivity.transports.base.Probe`)."""
    options = Options.model_validate(connection.own_options)
    client = SansIoPahoClient(name, dialect.protocol, clean_session=True)
    client.max_packet = PACKET_ROOM
    properties = dialect.connect_properties(WINDOW, PACKET_ROOM)
    channel = AsyncMqttClient(client, lambda _error: None)
    try:
        connack = await log_in(channel, connection, options, properties)
        can_share = ServerLimits.of(connack.properties).shared_subscriptions
        is_shared = connection.client_count > 1 and can_share
        sources = []
        for source in connection.sources:
            qos = source.qos or 0
            sources.append([await _look(channel, each, name, is_shared, qos) for each in source.addresses])
    except BaseException:
        channel.abandon()
        raise
    await channel.close()
    return ProbeReport(
        sources,
        [_unchecked(source.reply_target.address) for source in connection.sources],
        [_unchecked(target.address) for target in connection.targets],
        "" if can_share or connection.client_count == 1 else NO_SHARED,
    )


async def _look(channel: AsyncMqttClient, address: str, name: str, is_shared: bool, qos: int) -> AddressCheck:
    try:
        await channel.subscribe([probe_filter(address, name, is_shared)], qos, None)
    except ConnectionRefused as error:
        return AddressCheck(address, error)
    return AddressCheck(address)


def probe_filter(address: str, group: str, is_shared: bool) -> str:
    """Return the filter; a shared one in a group of its own."""
    if address.startswith(SHARED):
        return f"{SHARED}{group}/{address.split('/', 2)[2]}"
    return f"{SHARED}{group}/{address}" if is_shared else address


def _unchecked(address: str) -> AddressCheck:
    return AddressCheck(
        address, note=RESOLVED_PER_MESSAGE if has_expression(address) else CHECKED_WHEN_SENT, is_known=False
    )
