"""Opens Kafka links: name resolution, brokers, topics, joining the group.

Each step has a timeout. A broker is probed (`handshake`) before librdkafka starts. The library's first report that no
broker can be reached ends the attempt, with its reason if that is specific, else with the result of another probe.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from connectivity.connections.model import Connection
from connectivity.errors import ConnectionRefused, Detail, NotConnected
from connectivity.transports.base import CONSUME_DEFAULTS, ConsumeOptions
from connectivity.transports.dialer import ForbiddenAddress, dial_error, resolve_allowed, run_in_thread
from connectivity.transports.kafka import client_config
from connectivity.transports.kafka.client_config import servers
from connectivity.transports.kafka.consumer import KafkaConsumer
from connectivity.transports.kafka.errors import ALL_DOWN, VAGUE, link_error
from connectivity.transports.kafka.group import Key
from connectivity.transports.kafka.handshake import handshake, list_brokers
from connectivity.transports.kafka.link import REPAIR_SECONDS, KafkaLink
from connectivity.transports.kafka.options import Options
from connectivity.transports.kafka.producer import KafkaProducer

PATIENCE = 10.0
"""Seconds for reaching a broker, and again for its answer about topics."""

JOIN_TIMEOUT = 30.0
"""Seconds for joining the group, which may first wait for the timeout of a former member."""

REASON_TIMEOUT = 5.0
"""Seconds that the library has to report why a request has failed."""

Answer = TypeVar("Answer")


async def connect(
    connection: Connection,
    client: int = 0,
    consume: ConsumeOptions = CONSUME_DEFAULTS,
    *,
    patience: float = PATIENCE,
    repair_seconds: float = REPAIR_SECONDS,
) -> KafkaLink:
    """Return a link with every source subscribed. Raises NotConnected or ConnectionRefused."""
    options = Options.model_validate(connection.own_options)
    link = KafkaLink([source.addresses for source in connection.sources], repair_seconds)
    broker_addresses = servers(connection, options)
    link.probe = partial(handshake, connection, broker_addresses, options.sasl_mechanism.upper())
    try:
        await _check_hosts(broker_addresses, patience)
        await link.probe(patience)
        await _open(link, connection, options, client, consume, patience)
    except BaseException:
        link.abandon()
        raise
    link.mark_started()
    return link


async def _open(
    link: KafkaLink, connection: Connection, options: Options, client: int, consume: ConsumeOptions, patience: float
) -> None:
    try:
        producer = client_config.producer_settings(connection, options)
        link.begin(
            KafkaProducer(producer, connection.id, on_error=link.failed, on_stuck=link.stuck),
            AdminClient(client_config.common_settings(connection, options)),
        )
    except KafkaException as failure:
        # Nothing was sent yet, so a setting is invalid, and validation leaves only certificates.
        raise _refused_settings(failure) from failure
    admin = link.admin
    nodes = await answer_of(link, run_in_thread("kafka connect", partial(list_brokers, admin, patience)), patience)
    await _check_hosts(nodes, patience)
    # From here on the library connects to the brokers' advertised addresses.
    link.probe = partial(handshake, connection, nodes, options.sasl_mechanism.upper())
    topics = _topics(connection)
    if not topics:
        return
    known = await _known_partitions(link, admin, list(topics), patience)
    number = max(source.consumer_count for source in connection.sources)
    members = [
        KafkaConsumer(
            client_config.consumer_settings(connection, options, consume.unsettled_bytes, client, member),
            admin,
            _topics(connection, member),
            known,
            starts_at_end=options.consumer_offset_reset == "latest",
            limit=limit_share(options.throttling_limit, number, member),
            max_bytes=consume.unsettled_bytes,
            on_records=link.taken,
            on_committed=consume.on_committed,
            on_dropped=link.drop,
            on_error=link.failed,
            on_ended=link.ended,
        )
        for member in range(number)
    ]
    for member in members:
        link.join(member)
    for member in members:
        await _wait_unless_down(link, member.joined, JOIN_TIMEOUT)


def _topics(connection: Connection, member: int = 0) -> dict[str, bool]:
    """Return the topics of this member: topic → whether a source needs at-least-once delivery."""
    topics: dict[str, bool] = {}
    for source in connection.sources:
        for topic in source.addresses:
            if topic in topics or source.consumer_count > member:
                topics[topic] = False
    for source in connection.sources:
        for topic in topics.keys() & source.addresses:
            topics[topic] = topics[topic] or source.qos == 1
    return topics


def limit_share(limit: int | None, number: int, member: int) -> int | None:
    """Return the share of one member in a client's limit."""
    return None if limit is None else max(1, (limit + number - 1 - member) // number)


async def _known_partitions(link: KafkaLink, admin: AdminClient, topics: list[str], patience: float) -> list[Key]:
    """Return the existing partitions.

    Raises ConnectionRefused for a topic that is missing or not permitted.
    """
    known = []
    answers = admin.describe_topics(TopicCollection(topics), request_timeout=patience)
    for name, answer in answers.items():
        description = await answer_of(link, asyncio.wrap_future(answer), patience, name)
        known += [(name, partition.id) for partition in description.partitions]
    return known


async def answer_of(link: KafkaLink, answer: Awaitable[Any], patience: float, topic: str = "") -> Any:
    """Wait for a broker's answer. Raises LinkError if there is none or a refusal."""
    try:
        return await _wait_unless_down(link, asyncio.ensure_future(answer), patience)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() in VAGUE or error.code() == ALL_DOWN:
            # The reason arrives by a callback, perhaps a moment later.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REASON_TIMEOUT):
                    await link.down.wait()
            raise await link.reason(patience) from failure
        raise link_error(error, topic) from failure


async def _wait_unless_down(link: KafkaLink, future: asyncio.Future[Answer], patience: float) -> Answer:
    """Wait for `future`, or until no broker can be reached. Raises LinkError."""
    down = asyncio.ensure_future(link.down.wait())
    try:
        ends: list[asyncio.Future[Any]] = [future, down]
        await asyncio.wait(ends, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    finally:
        down.cancel()
    if future.done():
        return future.result()
    future.cancel()
    raise await link.reason(patience)


def _refused_settings(failure: KafkaException) -> ConnectionRefused:
    words = str(failure.args[0].str() if isinstance(failure.args[0], KafkaError) else failure)
    return ConnectionRefused(Detail.CERTIFICATE, f"the connection's ca or credentials are invalid: {words}")


async def _check_hosts(broker_addresses: Sequence[tuple[str, int]], patience: float) -> None:
    """Resolve host names before the library does.

    One that resolves is enough; none may resolve to a forbidden address.
    """
    found, unknown = 0, ""
    for host, port in dict.fromkeys(broker_addresses):
        try:
            async with asyncio.timeout(patience):
                await run_in_thread("kafka connect", partial(resolve_allowed, host, port))
        except ForbiddenAddress as error:
            raise dial_error(error) from error
        except TimeoutError:
            unknown = f"{host}: no response from the name server"
        except (OSError, UnicodeError) as error:
            unknown = f"{host}: {dial_error(error).text}"
        else:
            found += 1
    if broker_addresses and not found:
        raise NotConnected(Detail.UNKNOWN_HOST, unknown)
