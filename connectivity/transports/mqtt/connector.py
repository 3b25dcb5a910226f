"""Opens MQTT links: client IDs, sessions, last will, login, TLS, subscriptions.

A persistent session (the default) makes the broker queue messages while the service is away. Deliveries before the
subscriptions are confirmed are kept in the link; those that match no source are acknowledged and dropped.

The clients of a connection have client IDs that stay the same after a restart, so that each resumes its own session.
They share subscriptions; if the broker has no shared subscriptions, only the first client consumes and the others publish.

A QoS 2 message is acknowledged (PUBREC) when it is settled, not when it arrives: until then the broker redelivers it. After
PUBREC it sends only PUBREL, also on the next link of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog
from paho.mqtt.properties import Properties

from connectivity.connections.model import Connection
from connectivity.errors import ClientCertificateRequired, Detail, LinkError, NotConnected
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions
from connectivity.transports.dialer import tls_context
from connectivity.transports.mqtt.async_client import AsyncMqttClient, ConnAck
from connectivity.transports.mqtt.link import IN_FLIGHT, STALLED_SECONDS, MqttLink
from connectivity.transports.mqtt.options import Options
from connectivity.transports.mqtt.paho_client import PACKET_ROOM, SansIoPahoClient
from connectivity.transports.mqtt.properties import MAX_PACKET, ServerLimits
from connectivity.transports.mqtt.protocol_version import ProtocolVersion
from connectivity.transports.mqtt.topics import shared_filter

log = structlog.get_logger(__name__)

SESSION_EXPIRY = 60
"""Seconds that a broker of MQTT 5 keeps a session after its link has ended."""

LOWER_QOS = "the broker sends {} with QoS 0, not {}: messages may be lost"
NO_SHARED = "the broker has no shared subscriptions, only the first client consumes"


async def connect(
    mqtt_version: ProtocolVersion,
    connection: Connection,
    client: int = 0,
    consume: ConsumeOptions = CONSUME_DEFAULTS,
    *,
    is_publishing: bool = True,
) -> MqttLink:
    """Return a link with every source subscribed. Raises NotConnected or ConnectionRefused."""
    options = Options.model_validate(connection.own_options)
    if not is_publishing:
        # The link of another client may publish with the same ID.
        options = options.model_copy(update={"separate_publisher_client": False})
    delay = options.reconnect_for_redelivery_delay.total_seconds() if options.reconnect_for_redelivery else None
    # Packet identifiers belong to a session, and each client has one of its own.
    prefix = f"mqtt:{client}:" if connection.client_count > 1 else "mqtt:"
    filters = [source.addresses for source in connection.sources]
    discard = partial(_discard_session, connection, options, mqtt_version, client)
    # Without a kept session the broker does not redeliver, and a new link may miss messages.
    stalled = None if options.clean_session else STALLED_SECONDS
    link = MqttLink(mqtt_version, filters, delay, discard, prefix, consume, stalled)
    try:
        await _join(link, connection, options, mqtt_version, client, consume)
    except BaseException:
        link.abandon()
        raise
    if link.lost.done():
        raise NotConnected(link.lost.result().detail, link.lost.result().text)
    return link


def session_names(connection: Connection) -> Sequence[str]:
    """Return the client IDs with a session at the broker, in the order of the clients."""
    options = Options.model_validate(connection.own_options)
    if options.clean_session:
        return ()
    return [_client_id(connection, options, client) for client in range(connection.client_count)]


def _client_id(connection: Connection, options: Options, client: int) -> str:
    """Return the ID of a client; empty if the broker chooses it."""
    client_id = connection.id if options.client_id is None else options.client_id
    return f"{client_id}{_suffix(connection, client)}" if client_id else ""


def _suffix(connection: Connection, client: int) -> str:
    return f"_{client}" if connection.client_count > 1 else ""


async def _join(
    link: MqttLink,
    connection: Connection,
    options: Options,
    mqtt_version: ProtocolVersion,
    client: int,
    consume: ConsumeOptions,
) -> None:
    max_packet = min(consume.payload + PACKET_ROOM, MAX_PACKET)
    consumer = SansIoPahoClient(
        _client_id(connection, options, client), mqtt_version.protocol, clean_session=options.clean_session
    )
    if options.last_will_topic is not None:
        consumer.will_set(
            options.last_will_topic, options.last_will_message, options.last_will_qos, options.last_will_retain
        )
    consumer.max_packet = max_packet
    channel = link.make_channel(consumer)
    make_properties = partial(mqtt_version.connect_properties, IN_FLIGHT, max_packet)
    connack = await log_in(channel, connection, options, make_properties(), clean=options.clean_session)
    if not connack.session_present:
        # The broker numbers its messages from the beginning.
        await consume.on_new_session(link.prefix)
    limits = ServerLimits.of(connack.properties)
    is_shared = connection.client_count > 1 and limits.shared_subscriptions
    if connection.client_count > 1 and not is_shared:
        link.condition = f"{Detail.CONNECTED.value}: {NO_SHARED}"
    if client == 0 or is_shared:
        await _subscribe(link, channel, connection, mqtt_version, limits, is_shared=is_shared)
    if options.separate_publisher_client:
        # The publisher subscribes to nothing, so it needs no persistent session.
        publisher_id = (
            f"{options.publisher_id or f'{options.client_id or connection.id}p'}{_suffix(connection, client)}"
        )
        publisher = SansIoPahoClient(publisher_id, mqtt_version.protocol, clean_session=True)
        connack = await log_in(link.make_channel(publisher), connection, options, make_properties())
    link.made(ServerLimits.of(connack.properties))


async def _subscribe(
    link: MqttLink,
    channel: AsyncMqttClient,
    connection: Connection,
    mqtt_version: ProtocolVersion,
    limits: ServerLimits,
    *,
    is_shared: bool,
) -> None:
    """Subscribe to the addresses of all sources, and note in the link what the broker does not grant."""
    for number, group in link.groups.items():
        filters = [shared_filter(each, connection.id) if is_shared else each for each in group]
        qos = max(source.qos or 0 for source in connection.sources if group[0] in source.addresses)
        identifier = mqtt_version.subscribe_properties(number) if limits.subscription_identifiers else None
        granted = await channel.subscribe(filters, qos, identifier)
        link.subscribed += filters
        if granted < min(qos, 1):
            # With QoS 1 in place of 2, nothing is lost or executed twice either.
            link.condition = f"{Detail.CONNECTED.value}: {LOWER_QOS.format(', '.join(group), qos)}"


async def _discard_session(
    connection: Connection, options: Options, mqtt_version: ProtocolVersion, client: int
) -> None:
    """Connect without the kept session, which ends by that, with its subscriptions of earlier documents."""
    consumer = SansIoPahoClient(_client_id(connection, options, client), mqtt_version.protocol, clean_session=True)
    channel = AsyncMqttClient(consumer, lambda _error: None)
    try:
        await log_in(channel, connection, options, None)
    except LinkError as error:
        log.warning("session not discarded", connection=connection.id, reason=str(error))
    await channel.close()


async def log_in(
    channel: AsyncMqttClient,
    connection: Connection,
    options: Options,
    properties: Properties | None,
    *,
    clean: bool = True,
) -> ConnAck:
    """Connect to the broker and log in, with these properties. Raises NotConnected, ConnectionRefused.

    `clean`: discard the kept session, and let the broker keep none.
    """
    client, uri = channel.client, connection.broker_uri
    if uri.username is not None:
        client.username_pw_set(uri.username, uri.password.get_secret_value() if uri.password else None)

    def dial() -> None:
        if uri.is_secure:
            client.tls_set_context(tls_context(connection))
        keep_alive = int(options.keep_alive.total_seconds())
        if properties is None:
            client.connect(uri.host, uri.port, keep_alive)
        else:
            if not clean:
                properties.SessionExpiryInterval = SESSION_EXPIRY
            client.connect(uri.host, uri.port, keep_alive, clean_start=clean, properties=properties)

    try:
        return await channel.connect(dial)
    except NotConnected as error:
        # With TLS 1.3 a missing client certificate shows only after the handshake, often as a closed connection.
        is_closed_early = error.detail in (Detail.CONNECTING, Detail.REFUSED_BY_BROKER)
        is_tls_connected = channel.is_port_reached and uri.is_secure
        if is_closed_early and is_tls_connected and connection.credentials is None:
            words = f"{error.text}; the broker may require a client certificate"
            raise ClientCertificateRequired(Detail.CERTIFICATE, words) from error
        raise
