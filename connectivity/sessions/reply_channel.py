"""How a session of a protocol with sessions of its own is sent messages: a line to its reply address, in order.

The address is where the source's reply-target leads with the headers of a request, so whoever sends requests chooses it.
Which addresses are meant the operator says, by a pattern or by the fixed beginning of the reply-target. All messages of one
line go through the same lane of the connection's outbox, whatever link that uses (Ditto connections, reply-targets).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from connectivity.errors import ConnectivityError
from connectivity.monitoring.log_context import log_context
from connectivity.sources.delivery import InboundDelivery
from connectivity.targets.destination import Destination
from connectivity.targets.outbox import PendingPublish
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import CloseReason, Done, OutboundMessage
from mappings.model.envelope import Envelope
from mappings.model.signals import Headers
from mappings.placeholders.address import AddressPattern, begins_alike

log = structlog.get_logger(__name__)


class ReplyChannel:
    """The way to one reply address, as one request has it: `mapped` are the headers that the reply-target maps from it.

    `order` names what keeps its order where one address is several queues.
    """

    __slots__ = ("_order", "address", "mapped", "route")

    def __init__(self, route: ReplyTargetPublisher, resolved: Destination, order: str | None = None) -> None:
        self.address = resolved.address
        self.route = route
        self.mapped = resolved.headers
        self._order = order or resolved.address

    def __repr__(self) -> str:
        return f"<Line to {self.address} of {self.route.connection_id}>"

    @property
    def connection_id(self) -> str:
        return self.route.connection_id

    @property
    def source(self) -> int:
        """The index of the source by whose reply-target it leads."""
        return self.route.index

    def post(
        self,
        envelopes: Sequence[Envelope],
        ended: Done | None = None,
        *,
        elements: int = 0,
        parting: CloseReason | None = None,
    ) -> PendingPublish:
        """Send messages, `elements` of streams in them. What the reply-target maps replaces headers of theirs.

        `parting`: why nothing follows them.
        """
        merged = [Envelope(each.payload, {**each.headers, **self.mapped}) for each in envelopes]
        return self.deliver(merged, ended, elements=elements, parting=parting)

    def deliver(
        self,
        envelopes: Sequence[Envelope],
        ended: Done | None = None,
        *,
        elements: int = 0,
        parting: CloseReason | None = None,
    ) -> PendingPublish:
        """The same with messages whose headers are complete."""
        route, address, order = self.route, self.address, self._order
        messages = [OutboundMessage(address, envelope, route.qos, order) for envelope in envelopes]
        if parting is not None:
            messages[-1] = msgspec.structs.replace(messages[-1], parting=parting)
        route.facts.dispatched.note(None, len(messages))
        route.facts.mapped.note(None, len(messages))
        told = partial(self._ended, len(messages), elements, ended)
        return route.outbox.post(messages, told, address, route.place)

    def _ended(self, messages: int, elements: int, ended: Done | None, error: ConnectivityError | None) -> None:
        route = self.route
        if error is not None:
            route.facts.not_published.note(None, words=str(error))
            # The peer of a door that has gone is no news, and may come and go as it likes.
            say = log.debug if route.is_listener else log.warning
            say(
                "a frame was not taken",
                connection=route.connection_id,
                source=route.index,
                address=self.address,
                error=str(error),
            )
        else:
            route.facts.published.note(None, messages)
            route.meter.events += elements
        if ended is not None:
            ended(error)


def resolved_reply(route: ReplyTargetPublisher, headers: Headers, arrival: InboundDelivery) -> Destination | None:
    """Where a request is answered; None where that leads nowhere.

    Raises MappingError for what can be no address.
    """
    return route.place_of_reply(headers, arrival.delivery.address, arrival.received.subjects)


def is_meant(address: str, pattern: AddressPattern | None, route: ReplyTargetPublisher) -> bool:
    """Whether answers may go to this address, which came with a request: as the operator says, or as he has written."""
    if pattern is not None:
        return pattern.allows(address)
    return route.is_fixed or begins_alike(address, route.beginning)


def drop(what: str, arrival: InboundDelivery, headers: Headers, **about: object) -> None:
    """Nobody can be answered, so nothing is done: this is counted, and `what` it was is told to operators."""
    arrival.route.meter.inbound("unanswerable")
    log.warning(
        what,
        connection=arrival.route.connection_id,
        source=arrival.route.index,
        address=arrival.delivery.address,
        **about,
        **log_context(headers),
    )
