"""Sends responses to commands: to the reply target of their source, or diverted to another connection.

All responses are sent here. Events of subscriptions are never diverted, and go to their reply target directly.
"""

from __future__ import annotations

import structlog
from msgspec.structs import replace

from connectivity.connections.model import ResponseType
from connectivity.connections.templates import DIVERT_TO
from connectivity.errors import ConnectivityError
from connectivity.monitoring.logs import log_context
from connectivity.sources.delivery import InboundDelivery
from connectivity.targets.directory import DIVERTED_FROM, ConnectionDirectory
from connectivity.targets.reply_target import ReplyTargetPublisher, response_type, too_large
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import Done
from mappings.model.headers import response_required, without_reply_address
from mappings.model.signals import Answer, Headers

log = structlog.get_logger(__name__)


class ResponseRouter:
    """Sends responses."""

    def __init__(self, members: ConnectionDirectory) -> None:
        self._members = members

    def address_headers(self, route: ReplyTargetPublisher, headers: Headers) -> frozenset[str]:
        """Return the headers that the address of a live response depends on, in lower case.

        `headers` are those of its request.
        """
        found = self._members.find_diversion(headers, ResponseType.RESPONSE.value, route.connection_id, route.index)
        if found is None or found.target is None:
            return route.address_headers
        return route.address_headers | found.target.address_headers

    def post(
        self,
        route: ReplyTargetPublisher,
        answer: Answer,
        ended: Done,
        arrival: InboundDelivery,
        *,
        unasked: bool = False,
    ) -> None:
        """Send the response to a signal of this delivery; `ended` is called once all brokers have it.

        `unasked`: the request could not be read, or the response is sent although none is required.
        """
        if DIVERT_TO not in answer.headers:
            route.post(answer, ended, unasked=unasked)
            return
        diverted = self._members.find_diversion(answer.headers, response_type(answer), route.connection_id, route.index)
        if diverted is None:
            route.post(answer, ended, unasked=unasked)
            return
        target = diverted.target
        if target is None:
            log.warning(
                "response not diverted",
                connection=route.connection_id,
                source=route.index,
                to=answer.headers[DIVERT_TO],
                error=diverted.reason,
                **log_context(answer.headers),
            )
        if not (unasked or response_required(answer.headers)):
            target = None
        if diverted.is_preserved:
            both = _BothDone(ended) if target is not None else ended
            route.post(answer, both, unasked=unasked)
            ended = both
        if target is not None:

            def confirmed(error: ConnectivityError | None) -> None:
                arrival.count_waits(-1)
                ended(error)

            # It waits for the broker of another connection.
            arrival.count_waits(1)
            headers = without_reply_address(answer.headers) if route.is_listener else answer.headers
            _send(target, replace(answer, headers={**headers, DIVERTED_FROM: route.connection_id}), confirmed)
        elif not diverted.is_preserved:
            route.counters.not_diverted.note(answer, words=diverted.reason or None)
            ended(None)


def _send(target: TargetPublisher, answer: Answer, ended: Done) -> None:
    def sent(error: ConnectivityError | None) -> None:
        if (replacement := too_large(answer, error)) is not None:
            _send(target, replacement, ended)
        else:
            ended(error)

    if target.post(answer, sent) is None:
        ended(None)


class _BothDone:
    """Calls `ended` at the second of two calls, with the first failure."""

    def __init__(self, ended: Done) -> None:
        self._ended = ended
        self._error: ConnectivityError | None = None
        self._open = 2

    def __call__(self, error: ConnectivityError | None) -> None:
        self._error = self._error or error
        self._open -= 1
        if self._open == 0:
            self._ended(self._error)
