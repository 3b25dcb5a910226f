"""From a connection document to the settings of librdkafka: brokers, login, TLS, consumer, producer.

**Trust.** A connection's `ca` is trusted in addition to the system's authorities and leaves the check of host names on;
only `validateCertificates: false` turns checks off.

**Group.** Each consumer of a connection is a member of its group by name (a static member, Kafka 2.3 and later): after a
crash or a cut its next link takes up the same partitions at once, and whatever is left of the former link is shut out by
the broker. The first consumer of the first client is called like the connection, so that more of them change nothing for
it.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from connectivity.connections.model import Connection
from connectivity.connections.templates import with_connection_id
from connectivity.transports.kafka.options import Options

Settings = dict[str, Any]

_NOBODY = logging.getLogger("librdkafka")
_NOBODY.disabled = True

SOCKET_TIMEOUT = 10_000
"""Milliseconds until a request without an answer ends the link to a broker."""

SESSION_TIMEOUT, HEARTBEAT = 10_000, 3_000
COMMIT_INTERVAL = 1_000
PREFETCHED_RECORDS, PREFETCHED_KIB = 10_000, 16_384

BATCH_BYTES = 131_072
"""A batch that a broker finds too large fails as a whole: small batches keep small messages apart from large ones."""

LINGER_MS = 0.5
"""Milliseconds that a message waits for others to go with it."""

LARGEST_MESSAGE = 64 << 20
"""Far above what brokers take (1 MiB by default), so that the broker says what is too large."""

MISSING_TOPIC_KNOWN_AFTER = 3_000
"""Milliseconds until a message to a topic that does not exist is given up."""


def servers(connection: Connection, options: Options) -> list[tuple[str, int]]:
    """Host and port of the brokers to begin with: the `uri`'s own, then `bootstrapServers`."""
    uri = connection.broker_uri
    pairs = [(uri.host, uri.port)]
    for server in options.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        pairs.append((host.strip("[]"), int(port)))
    return list(dict.fromkeys(pairs))


def common_settings(connection: Connection, options: Options) -> Settings:
    """What all clients of a connection share."""
    hosts = [(f"[{host}]" if ":" in host else host, port) for host, port in servers(connection, options)]
    settings = {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in hosts),
        "client.id": connection.id,
        # What is worth saying comes through the error callback; the library would write the worst to the terminal.
        "log_level": 0,
        "logger": _NOBODY,
        "socket.timeout.ms": SOCKET_TIMEOUT,
        "socket.connection.setup.timeout.ms": SOCKET_TIMEOUT,
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "metadata.max.age.ms": 180_000,
    }
    return {**settings, **_security_settings(connection, options)}


def group_of(connection: Connection, options: Options) -> str:
    """The group that the connection's consumers are in."""
    return with_connection_id(options.group_id, connection.id) if options.group_id else connection.id


def consumer_settings(connection: Connection, options: Options, client: int = 0, member: int = 0) -> Settings:
    """For one consumer (`member`, from 0) of one of the connection's clients."""
    name = connection.id if (client, member) == (0, 0) else f"{connection.id}.{client}.{member}"
    return {
        **common_settings(connection, options),
        "client.id": f"{name}-consumer",
        "group.id": group_of(connection, options),
        "group.instance.id": name,
        # Partitions that stay with a member flow on while others move.
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": SESSION_TIMEOUT,
        "heartbeat.interval.ms": HEARTBEAT,
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": COMMIT_INTERVAL,
        # Where a group without offsets begins is decided at assignment. This is about offsets whose records are gone.
        "auto.offset.reset": "earliest",
        # How late a deleted topic is noticed, which the broker tells of only when it is asked.
        "topic.metadata.refresh.interval.ms": 10_000,
        "queued.min.messages": PREFETCHED_RECORDS,
        "queued.max.messages.kbytes": PREFETCHED_KIB,
        # With that much read ahead it looks again after a second by default, and would run dry meanwhile.
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 100,
    }


def producer_settings(connection: Connection, options: Options) -> Settings:
    return {
        **common_settings(connection, options),
        "client.id": f"{connection.id}-producer",
        "enable.idempotence": True,
        "acks": "all",
        # Messages that cannot be delivered wait for the end of the link, after which they are sent again in order.
        "message.timeout.ms": 0,
        # Without it the library's thread is woken for every message, and sends them almost one by one.
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_BYTES,
        "message.max.bytes": LARGEST_MESSAGE,
        "topic.metadata.propagation.max.ms": MISSING_TOPIC_KNOWN_AFTER,
        "topic.metadata.refresh.interval.ms": 30_000,
    }


def _security_settings(connection: Connection, options: Options) -> Settings:
    uri = connection.broker_uri
    has_login = uri.username is not None and uri.password is not None
    protocol = "SSL" if uri.is_secure else "PLAINTEXT"
    settings: Settings = {"security.protocol": f"SASL_{protocol}" if has_login else protocol}
    if has_login:
        assert uri.password is not None
        settings["sasl.mechanism"] = options.sasl_mechanism.upper()
        settings["sasl.username"] = uri.username
        settings["sasl.password"] = uri.password.get_secret_value()
    return {**settings, **_tls_settings(connection)} if uri.is_secure else settings


CIPHERS = "DEFAULT:@SECLEVEL=2"
"""What the library agrees to: at this level there is no TLS below 1.2, whatever the settings of the system say. It has no
setting of its own for versions."""


def _tls_settings(connection: Connection) -> Settings:
    if not connection.validate_certificates:
        settings: Settings = {
            "enable.ssl.certificate.verification": False,
            "ssl.endpoint.identification.algorithm": "none",
        }
    else:
        settings = {"ssl.endpoint.identification.algorithm": "https"}
        if (system := _system_authorities()) is not None:
            settings["ssl.ca.location"] = system
        if connection.ca:
            settings["ssl.ca.pem"] = connection.ca
    settings["ssl.cipher.suites"] = CIPHERS
    if (own := connection.credentials) is not None and own.cert:
        settings["ssl.certificate.pem"] = own.cert
        if own.key is not None:
            settings["ssl.key.pem"] = own.key.get_secret_value()
    return settings


def _system_authorities() -> str | None:
    """The file or folder that this system keeps its authorities in; the library's own default knows fewer places."""
    paths = ssl.get_default_verify_paths()
    places = (paths.cafile, paths.capath)
    return next((place for place in places if place and Path(place).exists()), None)
