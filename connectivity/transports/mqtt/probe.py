"""What an MQTT broker says about the addresses of a connection, asked for by a client that leaves nothing behind.

It has a client id of its own and a session that ends with its link, so no kept session is taken over or emptied; it has no
last will. It subscribes as a link would. What the broker then delivers are copies made for it alone: shared filters are
subscribed to in a group of its own, since in the real one it would be given messages that are meant for others. It
acknowledges nothing.

Of the addresses that are published to a broker says nothing before it is sent a message, and a message is none of a
trial's business.
"""

from __future__ import annotations

import asyncio

from connectivity.connections.model import Connection
from connectivity.connections.templates import has_expression
from connectivity.errors import ConnectionRefused, LinkError
from connectivity.transports.base import FILLED_LATER, AddressCheck, ProbeReport
from connectivity.transports.mqtt.async_client import AsyncMqttClient
from connectivity.transports.mqtt.connector import HIGHEST_SUBSCRIBED_QOS, NO_SHARED, PATIENCE, dialing, greet
from connectivity.transports.mqtt.options import Options
from connectivity.transports.mqtt.paho_client import SansIoPahoClient
from connectivity.transports.mqtt.properties import ServerLimits
from connectivity.transports.mqtt.protocol_version import ProtocolVersion

SHARED = "$share/"
WINDOW = 1
"""Deliveries that a broker of MQTT 5 may send; nobody acknowledges them."""

UNTOLD = "an MQTT broker says whether it takes messages here when it is sent one"


async def examine(
    connection: Connection, dialect: ProtocolVersion, name: str, *, patience: float = PATIENCE
) -> ProbeReport:
    """See `connectivity.transports.base.Probe`."""
    options = Options.model_validate(connection.own_options)
    lost: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()
    client = SansIoPahoClient(name, dialect.protocol, clean_session=True)
    properties = dialect.connect_properties(WINDOW)
    if properties is not None:
        properties.SessionExpiryInterval = 0
    channel = AsyncMqttClient(client, lost.set_result, lambda: None)
    try:
        dial = dialing(client, connection, options, properties, True, patience)
        welcome = await greet(channel, dial, connection, patience)
        can_share = ServerLimits.of(welcome.properties).shared_subscriptions
        is_shared = connection.client_count > 1 and can_share
        sources = []
        for source in connection.sources:
            qos = min(source.qos or 0, HIGHEST_SUBSCRIBED_QOS)
            sources.append([await _look(channel, each, name, is_shared, qos, patience) for each in source.addresses])
    except BaseException:
        channel.abandon()
        raise
    await channel.close()
    return ProbeReport(
        sources,
        [_untold(source.reply_target.address) for source in connection.sources],
        [_untold(target.address) for target in connection.targets],
        "" if can_share or connection.client_count == 1 else NO_SHARED,
    )


async def _look(
    channel: AsyncMqttClient, address: str, name: str, is_shared: bool, qos: int, patience: float
) -> AddressCheck:
    try:
        await channel.subscribe([own_filter(address, name, is_shared)], qos, None, patience)
    except ConnectionRefused as error:
        return AddressCheck(address, error)
    return AddressCheck(address)


def own_filter(address: str, group: str, is_shared: bool) -> str:
    """The filter, in a group of its own where it is shared with others."""
    if address.startswith(SHARED):
        return f"{SHARED}{group}/{address.split('/', 2)[2]}"
    return f"{SHARED}{group}/{address}" if is_shared else address


def _untold(address: str) -> AddressCheck:
    return AddressCheck(address, note=FILLED_LATER if has_expression(address) else UNTOLD, is_known=False)
