"""From a connection document to a link: reach, log in, look for queues and exchanges, consume.

All queues must be there; those that are not are named together, and the connection is misconfigured until they are. The
exchanges of targets and reply-targets are looked for too; a missing one is logged and keeps nobody waiting, since publishing
works as soon as it exists.
"""

from __future__ import annotations

from collections.abc import Iterator

from connectivity.amqp.addresses import split_address
from connectivity.amqp.faults import NOT_FOUND, consume_error
from connectivity.amqp.link import AmqpLink
from connectivity.amqp.options import Options
from connectivity.errors import ConnectionRefused, Detail, NotConnected
from connectivity.model import Connection
from connectivity.rules import has_expression


async def connect(connection: Connection) -> AmqpLink:
    """Make a link with every source consuming. Raises NotConnected or ConnectionRefused."""
    link = AmqpLink(connection, Options.model_validate(connection.own_options))
    try:
        await link.client.connect()
        await _look_for_queues(link, connection)
        await link.publisher.open()
        await link.publisher.look_for(set(_exchanges(connection)))
        for intake in link.intakes:
            await intake.open()
    except BaseException:
        link.abandon()
        await link.client.close()
        raise
    if link.lost.done():
        raise NotConnected(link.lost.result().detail, link.lost.result().words)
    return link


async def _look_for_queues(link: AmqpLink, connection: Connection) -> None:
    missing: list[str] = []
    for queue in dict.fromkeys(queue for source in connection.sources for queue in source.addresses):
        reason = await link.client.missing("queue", queue)
        if reason is not None and reason.code == NOT_FOUND:
            missing.append(reason.words)
        elif reason is not None:
            raise consume_error(queue, reason)
    if missing:
        raise ConnectionRefused(Detail.MISSING_ADDRESS, "; ".join(missing))


def _exchanges(connection: Connection) -> Iterator[str]:
    """The exchanges that stand in the document as they are."""
    addresses = [target.address for target in connection.targets]
    addresses += [source.reply_target.address for source in connection.sources if source.reply_target is not None]
    for address in addresses:
        exchange = address.partition("/")[0]
        if not has_expression(exchange) and "/" in address:
            try:
                yield split_address(f"{exchange}/any")[0]
            except ValueError:
                continue
