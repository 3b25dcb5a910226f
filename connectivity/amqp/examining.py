"""What an AMQP broker says about the addresses of a connection, without a message being taken or sent.

Queues and exchanges are declared passively, which makes none. Nothing is consumed: what is taken from a queue and goes back
comes marked as redelivered, and counts against the bounds of some queues. Whether there is a right to read is asked for
in a way that needs no message (`Client.unreadable`); whether there is one to write, only a message would tell.
"""

from __future__ import annotations

from connectivity.amqp.addresses import split_address
from connectivity.amqp.client import Client
from connectivity.amqp.faults import CHANNEL_DETAILS, consume_error
from connectivity.amqp.options import Options
from connectivity.brokers.base import FILLED_LATER, Examination, Finding
from connectivity.errors import ConnectionRefused, Detail
from connectivity.model import Connection
from connectivity.rules import has_expression

UNTOLD = "it is there; whether messages may be sent to it shows when one is"


async def examine(connection: Connection, name: str) -> Examination:  # noqa: ARG001 - here nobody has a name
    """See `connectivity.brokers.base.Examine`."""
    client = Client(connection, Options.model_validate(connection.own_options))
    try:
        await client.connect()
        found = Examination(
            [[await _queue(client, queue) for queue in source.addresses] for source in connection.sources],
            [await _published(client, source.reply_target.address) for source in connection.sources],
            [await _published(client, target.address) for target in connection.targets],
        )
    except BaseException:
        client.abandon()
        await client.close()
        raise
    await client.close()
    return found


async def _queue(client: Client, queue: str) -> Finding:
    reason = await client.missing("queue", queue) or await client.unreadable(queue)
    return Finding(queue, consume_error(queue, reason) if reason is not None else None)


async def _published(client: Client, address: str) -> Finding:
    """What is known of an address before there is a message: whether its exchange is there, or else its queue."""
    exchange, slash, key = address.partition("/")
    if has_expression(exchange) or not slash or (not exchange and has_expression(key)):
        return Finding(address, note=FILLED_LATER, is_known=False)
    try:
        exchange = split_address(f"{exchange}/any")[0]
    except ValueError as error:
        return Finding(address, ConnectionRefused(Detail.MISSING_ADDRESS, str(error)))
    what, called = ("exchange", exchange) if exchange else ("queue", key.removesuffix("/"))
    reason = await client.missing(what, called)
    if reason is None:
        return Finding(address, note=UNTOLD)
    detail = CHANNEL_DETAILS.get(reason.code, Detail.REFUSED_BY_BROKER)
    return Finding(address, ConnectionRefused(detail, f"{what} {called!r}: {reason.words}"))
