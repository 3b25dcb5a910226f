"""Builds the settings of librdkafka from a connection document: brokers, login, TLS, clients.

**Trust.** A connection's `ca` is trusted in place of the system's authorities, and host names are still checked; only
`validateCertificates: false` turns checks off.

**Group.** Each consumer is a static member of its group (Kafka 2.3 and later): after a crash its next link resumes the
same partitions at once, and the broker fences the former link. The first consumer of the first client has the
connection's name, so that adding others does not change it.
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

_SILENT_LOGGER = logging.getLogger("librdkafka")
_SILENT_LOGGER.disabled = True

SOCKET_TIMEOUT = 10_000
"""Milliseconds until a request without an answer ends the link to a broker."""

SESSION_TIMEOUT, HEARTBEAT = 10_000, 3_000
COMMIT_INTERVAL = 100
"""Milliseconds after which the library repeats a commit of the link that failed."""

PREFETCHED_RECORDS = 10_000
MIN_FETCH, MAX_FETCH, MAX_QUEUE_KIB = 1_000_000, 52_428_800, 2_097_151
"""The library's bounds for one fetch in bytes, and for its queue in KiB."""

BATCH_BYTES = 131_072
"""The batch size: a batch that a broker finds too large fails as a whole, so batches are small."""

LINGER_MS = 0.5
"""Milliseconds that a message waits for others in its batch."""

MAX_MESSAGE = 64 << 20
"""Bytes, far above the limit of brokers (1 MiB by default), so that the broker decides."""

MISSING_TOPIC_TIMEOUT = 3_000
"""Milliseconds until a message to a missing topic fails."""


def servers(connection: Connection, options: Options) -> list[tuple[str, int]]:
    """Return host and port of the bootstrap brokers: the `uri`'s own, then `bootstrapServers`."""
    uri = connection.broker_uri
    pairs = [(uri.host, uri.port)]
    for server in options.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        pairs.append((host.strip("[]"), int(port)))
    return list(dict.fromkeys(pairs))


def common_settings(connection: Connection, options: Options) -> Settings:
    """Return the settings that all clients of a connection share."""
    hosts = [(f"[{host}]" if ":" in host else host, port) for host, port in servers(connection, options)]
    settings = {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in hosts),
        "client.id": connection.id,
        # Errors are reported by the error callback; the library would also write them to the terminal.
        "log_level": 0,
        "logger": _SILENT_LOGGER,
        "socket.timeout.ms": SOCKET_TIMEOUT,
        "socket.connection.setup.timeout.ms": SOCKET_TIMEOUT,
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "metadata.max.age.ms": 180_000,
    }
    return {**settings, **_security_settings(connection, options)}


def consumer_group(connection: Connection, options: Options) -> str:
    """Return the consumer group of the connection."""
    return with_connection_id(options.group_id, connection.id) if options.group_id else connection.id


def consumer_settings(
    connection: Connection, options: Options, max_bytes: int, client: int = 0, member: int = 0
) -> Settings:
    """Return the settings of one consumer (`member`, from 0) of one of the connection's clients.

    `max_bytes` bounds what the library fetches ahead. The first batch of a fetch is never cut, however large: its bound
    is the topic's `max.message.bytes`.
    """
    name = connection.id if (client, member) == (0, 0) else f"{connection.id}.{client}.{member}"
    return {
        **common_settings(connection, options),
        "client.id": f"{name}-consumer",
        "group.id": consumer_group(connection, options),
        "group.instance.id": name,
        # Partitions that stay with a member are consumed during a rebalance.
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": SESSION_TIMEOUT,
        "heartbeat.interval.ms": HEARTBEAT,
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": COMMIT_INTERVAL,
        # Without it, damaged records are read as they are, or the consumer stops at them silently.
        "check.crcs": True,
        # Reports offsets whose records are deleted. The start of a group without offsets is decided at assignment.
        "auto.offset.reset": "error",
        # The maximum delay until a deleted topic is noticed.
        "topic.metadata.refresh.interval.ms": 10_000,
        "queued.min.messages": PREFETCHED_RECORDS,
        "queued.max.messages.kbytes": min(max(max_bytes // 1024, 1), MAX_QUEUE_KIB),
        "fetch.max.bytes": min(max(max_bytes, MIN_FETCH), MAX_FETCH),
        # By default fetching pauses for 1 s when the queue is full, and the queue would run empty.
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 100,
    }


def producer_settings(connection: Connection, options: Options) -> Settings:
    return {
        **common_settings(connection, options),
        "client.id": f"{connection.id}-producer",
        "enable.idempotence": True,
        "acks": "all",
        # Undelivered messages wait for the end of the link and are sent again in order on the next one.
        "message.timeout.ms": 0,
        # Without it the library's thread wakes up for every message and sends them almost one by one.
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_BYTES,
        "message.max.bytes": MAX_MESSAGE,
        "topic.metadata.propagation.max.ms": MISSING_TOPIC_TIMEOUT,
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
"""The OpenSSL ciphers; this security level excludes TLS below 1.2.

The library has no setting for TLS versions.
"""


def _tls_settings(connection: Connection) -> Settings:
    if not connection.validate_certificates:
        settings: Settings = {
            "enable.ssl.certificate.verification": False,
            "ssl.endpoint.identification.algorithm": "none",
        }
    else:
        settings = {"ssl.endpoint.identification.algorithm": "https"}
        if connection.ca:
            settings["ssl.ca.pem"] = connection.ca
        elif (system := _system_authorities()) is not None:
            settings["ssl.ca.location"] = system
    settings["ssl.cipher.suites"] = CIPHERS
    if (own := connection.credentials) is not None and own.cert:
        settings["ssl.certificate.pem"] = own.cert
        if own.key is not None:
            settings["ssl.key.pem"] = own.key.get_secret_value()
    return settings


def _system_authorities() -> str | None:
    """Return the file or folder of the system's authorities; the library's default knows fewer paths."""
    paths = ssl.get_default_verify_paths()
    places = (paths.cafile, paths.capath)
    return next((place for place in places if place and Path(place).exists()), None)
