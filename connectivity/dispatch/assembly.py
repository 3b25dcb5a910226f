"""Builds the dispatcher with its handlers, and lists the components that serve connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connectivity.authorization.quotas import Quotas
from connectivity.dispatch.announcements import PolicyAnnouncements
from connectivity.dispatch.command_executor import CommandExecutor
from connectivity.dispatch.command_handler import CommandHandler
from connectivity.dispatch.dispatcher import Dispatcher
from connectivity.dispatch.live_handler import LiveHandler, ReplyHandler
from connectivity.dispatch.quota_check import QuotaCheck
from connectivity.dispatch.request_reply import RequestReply
from connectivity.dispatch.responder import Responder
from connectivity.dispatch.response_router import ResponseRouter
from connectivity.dispatch.session_request_handler import SessionRequestHandler
from connectivity.dispatch.subscription_handler import SubscriptionHandler
from connectivity.sessions.base import SessionHandler
from connectivity.sources.turns import SourceTurns
from connectivity.store.store import Store
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.targets.directory import ConnectionDirectory
from connectivity.targets.event_publisher import EventPublisher
from connectivity.targets.open_connection import ConnectionComponent
from connectivity.twins.decider import Decider
from spark_store.rql.pace import SearchPace


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The dispatcher, and the parts that others use.

    `components` serve each open connection; they are notified in this order.
    """

    dispatcher: Dispatcher
    event_publisher: EventPublisher
    announcements: PolicyAnnouncements
    components: tuple[ConnectionComponent, ...]
    turns: SourceTurns


def assemble(
    store: Store,
    subscriptions: SubscriptionManager,
    decider: Decider,
    session_handlers: Mapping[str, SessionHandler],
    clock: Callable[[], float] = time.monotonic,
    quota_check: QuotaCheck | None = None,
    search_pace: SearchPace | None = None,
) -> Dispatch:
    """Build the dispatcher; a new kind of signal is one handler here.

    `session_handlers`: by protocol. `clock` returns monotonic seconds, for the timeouts of acknowledgements. Without a
    `quota_check` nothing is bounded. Searches with the `search_pace` give way to commands.
    """
    directory = ConnectionDirectory()
    event_publisher = EventPublisher(store, decider.world, decider.now)
    replies = ResponseRouter(directory)
    announcements = PolicyAnnouncements(directory)
    request_reply = RequestReply(directory, event_publisher, replies, decider.world, announcements, clock)
    responder = Responder(replies, request_reply, session_handlers)
    quota_check = quota_check or QuotaCheck(store, Quotas(()), 0)
    executor = CommandExecutor(store, decider, lambda: event_publisher.has_targets, quota_check)
    subscription_handler = SubscriptionHandler(subscriptions)
    handlers = (
        CommandHandler(store, decider, executor, request_reply, responder),
        subscription_handler,
        LiveHandler(request_reply),
        ReplyHandler(request_reply),
        SessionRequestHandler(session_handlers, executor, responder),
    )
    components = (
        event_publisher,
        directory,
        request_reply.pending,
        *session_handlers.values(),
        subscriptions,
        subscription_handler,
    )
    dispatcher = Dispatcher(store, handlers, responder, announcements, search_pace or SearchPace())
    return Dispatch(dispatcher, event_publisher, announcements, components, SourceTurns(store.commits.progress))
