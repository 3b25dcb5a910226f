"""Opens AMQP links: connecting, login, checks of queues and exchanges, consumers.

All queues must exist; an error names all missing ones, and the connection is misconfigured until they exist. A missing
exchange of a target or reply target is logged, and only that target is misconfigured: publishing works as soon as it exists.
"""

from __future__ import annotations

from collections.abc import Iterator

from connectivity.connections.model import Connection
from connectivity.connections.templates import has_expression
from connectivity.errors import ConnectionRefused, Detail, NotConnected
from connectivity.transports.amqp.client import AmqpClient
from connectivity.transports.amqp.errors import NOT_FOUND, address_error
from connectivity.transports.amqp.link import AmqpLink
from connectivity.transports.amqp.options import Options
from connectivity.transports.base import (
    CONSUME_DEFAULTS,
    RESOLVED_PER_MESSAGE,
    AddressCheck,
    ConsumeOptions,
    ProbeReport,
)


async def connect(
    connection: Connection,
    client: int = 0,  # noqa: ARG001 - all clients are alike
    consume: ConsumeOptions = CONSUME_DEFAULTS,
) -> AmqpLink:
    """Return a link with every source consuming. Raises NotConnected or ConnectionRefused."""
    link = AmqpLink(connection, Options.model_validate(connection.own_options), consume)
    try:
        await link.client.connect()
        await _check_queues(link, connection)
        await link.publisher.open()
        missing = await link.publisher.check_exchanges(set(_exchanges(connection)))
        exchanges = [target.address.partition("/")[0] for target in connection.targets]
        link.target_faults = {index: missing[each] for index, each in enumerate(exchanges) if each in missing}
        for intake in link.source_consumers:
            await intake.open()
        link.mark_started()
    except BaseException:
        link.abandon()
        await link.client.close()
        raise
    if link.lost.done():
        raise NotConnected(link.lost.result().detail, link.lost.result().text)
    return link


async def _check_queues(link: AmqpLink, connection: Connection) -> None:
    missing: list[str] = []
    for queue in dict.fromkeys(queue for source in connection.sources for queue in source.addresses):
        reason = await link.client.missing_reason("queue", queue)
        if reason is not None and reason.code == NOT_FOUND:
            missing.append(reason.text)
        elif reason is not None:
            raise address_error("queue", queue, reason)
    if missing:
        raise ConnectionRefused(Detail.MISSING_ADDRESS, "; ".join(missing))


def _exchanges(connection: Connection) -> Iterator[str]:
    """Yield the exchanges of addresses that have no placeholder in the exchange."""
    addresses = [target.address for target in connection.targets]
    addresses += [source.reply_target.address for source in connection.sources]
    for address in addresses:
        exchange, slash, _ = address.partition("/")
        if slash and not has_expression(exchange):
            yield exchange


PUBLISH_PERMISSION_UNKNOWN = "it exists; the permission to publish is checked only when a message is sent"


async def examine(connection: Connection, name: str) -> ProbeReport:  # noqa: ARG001 - AMQP clients have no name
    """Check the addresses of a connection (see `connectivity.transports.base.Probe`)."""
    client = AmqpClient(connection, Options.model_validate(connection.own_options))
    try:
        await client.connect()
        found = ProbeReport(
            [[await _queue(client, queue) for queue in source.addresses] for source in connection.sources],
            [await _check_publish(client, source.reply_target.address) for source in connection.sources],
            [await _check_publish(client, target.address) for target in connection.targets],
        )
    except BaseException:
        client.abandon()
        await client.close()
        raise
    await client.close()
    return found


async def _queue(client: AmqpClient, queue: str) -> AddressCheck:
    reason = await client.missing_reason("queue", queue) or await client.unreadable(queue)
    return AddressCheck(queue, address_error("queue", queue, reason) if reason is not None else None)


async def _check_publish(client: AmqpClient, address: str) -> AddressCheck:
    """Check an address to publish to: whether its exchange, or its queue, exists."""
    exchange, slash, key = address.partition("/")
    if has_expression(exchange) or not slash or (not exchange and has_expression(key)):
        return AddressCheck(address, note=RESOLVED_PER_MESSAGE, is_known=False)
    what, called = ("exchange", exchange) if exchange else ("queue", key.removesuffix("/"))
    reason = await client.missing_reason(what, called)
    if reason is None:
        return AddressCheck(address, note=PUBLISH_PERMISSION_UNKNOWN)
    return AddressCheck(address, address_error(what, called, reason))
