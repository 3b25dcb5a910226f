"""A reply channel: sends messages of a session to its reply address, in order.

The reply-target resolves the address from the headers of a request, so the sender chooses it. The operator restricts
addresses by a pattern or by the fixed beginning of the reply-target. All messages of a channel use the same queue of the
connection's outbox (Ditto connections, reply-targets).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from connectivity.errors import ConnectivityError
from connectivity.monitoring.logs import log_context
from connectivity.sources.delivery import InboundDelivery
from connectivity.targets.destination import Destination
from connectivity.targets.outbox import PendingPublish
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import CloseReason, Done, OutboundMessage
from mappings.model.envelope import Envelope
from mappings.model.signals import Headers
from mappings.placeholders.address import AddressPattern, has_address_prefix

log = structlog.get_logger(__name__)


class ReplyChannel:
    """The reply address of one request; `mapped` are the headers that the reply-target maps from it.

    `order` is the ordering key, if one address has several queues.
    """

    __slots__ = ("_order", "address", "mapped", "route")

    def __init__(self, route: ReplyTargetPublisher, resolved: Destination, order: str | None = None) -> None:
        self.address = resolved.address
        self.route = route
        self.mapped = resolved.headers
        self._order = order or resolved.address

    @property
    def connection_id(self) -> str:
        return self.route.connection_id

    @property
    def source(self) -> int:
        """The index of the source with the reply-target."""
        return self.route.index

    def post(
        self,
        envelopes: Sequence[Envelope],
        ended: Done | None = None,
        *,
        elements: int = 0,
        parting: CloseReason | None = None,
    ) -> PendingPublish:
        """Send messages that contain `elements` of streams.

        Mapped headers replace those of the messages. `parting`: why no message follows.
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
        """Send messages with complete headers."""
        route, address, order = self.route, self.address, self._order
        messages = [OutboundMessage(address, envelope, route.qos, order) for envelope in envelopes]
        if parting is not None:
            messages[-1] = msgspec.structs.replace(messages[-1], parting=parting)
        route.counters.dispatched.note(None, len(messages))
        route.counters.mapped.note(None, len(messages))
        done = partial(self._ended, len(messages), elements, ended)
        # At a listener all messages to a peer keep their order, up to the one after which it is disconnected.
        flow = None if route.is_listener else address
        return route.outbox.post(
            messages, done, address, route.source_key, flow=flow, is_element=bool(flow and elements)
        )

    def _ended(self, messages: int, elements: int, ended: Done | None, error: ConnectivityError | None) -> None:
        route = self.route
        if error is not None:
            route.counters.not_published.note(None, words=str(error))
            # A peer of a listener that has disconnected is not worth a warning.
            say = log.debug if route.is_listener else log.warning
            say(
                "frame not published",
                connection=route.connection_id,
                source=route.index,
                address=self.address,
                error=str(error),
            )
        else:
            route.counters.published.note(None, messages)
            route.meter.events += elements
        if ended is not None:
            ended(error)


def resolved_reply(route: ReplyTargetPublisher, headers: Headers, arrival: InboundDelivery) -> Destination | None:
    """Return the destination of replies to a request; None if there is none.

    Raises MappingError for an invalid address.
    """
    return route.reply_destination(headers, arrival.delivery.address, arrival.received.subjects)


def is_meant(address: str, pattern: AddressPattern | None, route: ReplyTargetPublisher) -> bool:
    """Whether the operator allows replies to this address of a request."""
    if not route.allows(address):
        return False
    if pattern is not None:
        return pattern.allows(address, route.key_mark)
    return route.is_fixed or has_address_prefix(address, route.beginning, route.key_mark)


def drop(what: str, arrival: InboundDelivery, headers: Headers, **about: object) -> None:
    """Drop a request that cannot be answered; count it, and log `what` it was."""
    arrival.route.meter.inbound("unanswerable")
    log.warning(
        what,
        connection=arrival.route.connection_id,
        source=arrival.route.index,
        address=arrival.delivery.address,
        **about,
        **log_context(headers),
    )
