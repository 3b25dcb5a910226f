"""The inside of the service without brokers: lamps, a policy, deliveries, a controlled store.

harness = ConnectionHarness()
await harness.has_lamp()
harness.deliver(command("modify", "/attributes/on", True))
await harness.settled(1)
harness.answers()
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from connectivity.authorization.quotas import Quotas
from connectivity.connections.model import Connection
from connectivity.dispatch.assembly import Dispatch, assemble
from connectivity.dispatch.live_handler import LiveHandler
from connectivity.dispatch.quota_check import QuotaCheck
from connectivity.dispatch.request_reply import RequestReply
from connectivity.errors import ConnectivityError, MessageRefused
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.sessions import SessionHandler, SessionServices, open_handlers
from connectivity.sources.delivery import DeliveryLedger, InboundDelivery, read
from connectivity.sources.reader import SourceReader
from connectivity.store.options import StoreOptions
from connectivity.store.store import Store
from connectivity.subscriptions.aggregation_feed import RowBudget, open_search
from connectivity.subscriptions.entity_feeds import EntityFeeds
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.live_feed import LiveFeeds
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.subscriptions.search_feed import SearchConnection, SearchService
from connectivity.targets.open_connection import OpenConnection
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import reply_publishers
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import Delivery, Done, OutboundMessage, Outcome, ReaderStatus
from connectivity.twins.decider import Decider
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.envelope import Envelope
from mappings.model.signals import Event, Message, SearchQuery, SessionQuery, Subscribe
from spark_store.errors import StoreUnavailable
from spark_store.journal.journal import Journal
from spark_store.records import Change, DeliveryName, Snapshot
from spark_store.rql.pace import ThreadPace
from spark_store.search.sqlite_search import SqliteSearch
from tests.support import memory_transport as _memory_transport  # noqa: F401 (registers the type of the connections here)
from tests.support.clock import Clock
from tests.support.in_process.fakes import Link
from tests.support.in_process.session_rows import KeptRows
from tests.support.in_process.slow_search import SlowSearch
from tests.support.temporary_journal import TemporaryJournal
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import Tracing
    from spark_store.lake.history_reader import LakeHistory

NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)
LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
OWNER = "acme:owner"
HASTY = StoreOptions(probe_min=0.001, probe_max=0.002)

_ALL = {"grant": ["READ", "WRITE"], "revoke": []}


def policy(*owners: str) -> dict[str, Any]:
    """Return a policy that grants everything to these subjects."""
    resources = {"thing:/": _ALL, "policy:/": _ALL, "message:/": _ALL}
    return {"entries": {"OWNER": {"subjects": {owner: {"type": "test"} for owner in owners}, "resources": resources}}}


def document(topic: str, path: str = "/", value: Any = ..., **headers: Any) -> bytes:
    """Return a message of the Ditto protocol. Keywords are headers, with `_` for `-`."""
    message: dict[str, Any] = {
        "topic": topic,
        "path": path,
        "headers": {name.replace("_", "-"): header for name, header in headers.items()},
    }
    if value is not ...:
        message["value"] = value
    return json.dumps(message).encode()


def command(action: str, path: str = "/", value: Any = ..., *, name: str = "lamp-7", **headers: Any) -> bytes:
    """Return a command for a thing of the site."""
    return document(f"acme.site/{name}/things/twin/commands/{action}", path, value, **headers)


def creation(name: str = "lamp-7", *owners: str, **headers: Any) -> bytes:
    return command("create", value={"_policy": policy(*(owners or (OWNER,)))}, name=name, **headers)


def turn(on: Any, **headers: Any) -> bytes:
    return command("modify", "/attributes/on", on, **headers)


def streaming(action: str, value: Any = ..., *, name: str = "lamp-7", **headers: Any) -> bytes:
    """Return a command of a streaming subscription."""
    return document(f"acme.site/{name}/things/twin/streaming/{action}", value=value, **headers)


def searching(action: str, value: Any = ..., **headers: Any) -> bytes:
    """Return a command of a search subscription."""
    return document(f"_/_/things/twin/search/{action}", value=value, **headers)


def source(address: str = "in", *subjects: str, **more: Any) -> dict[str, Any]:
    """Return a source with the reply target `out`, which `replyTarget` overrides."""
    return {
        "addresses": [address],
        "authorizationContext": list(subjects or (OWNER,)),
        "replyTarget": {"address": "out"},
        **more,
    }


def target(*topics: str, **more: Any) -> dict[str, Any]:
    """Return a target at `events` whose subject may read everything."""
    return {"address": "events", "topics": list(topics), "authorizationContext": [OWNER], **more}


def connection(*sources: Mapping[str, Any], **more: Any) -> Connection:
    """Return a connection to the broker in this process."""
    return Connection.model_validate(
        {
            "id": "site",
            "connectionType": "memory",
            "connectionStatus": "open",
            "uri": "memory://site:1",
            "sources": list(sources or (source(),)),
            **more,
        }
    )


class Disk(TemporaryJournal):
    """A journal whose commits wait while it `is_held`, and whose operations fail as a test says.

    Commits fail while it is `full`, reads while it is `unreadable`. With `loses_answers`, the next commit is carried
    out and then fails. `rejected` are texts that no value may contain.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open_gate = threading.Event()
        self._open_gate.set()
        self.full = self.unreadable = self.loses_answers = False
        self.rejected: set[bytes] = set()
        self.commits = self.probes = 0

    @property
    def is_held(self) -> bool:
        return not self._open_gate.is_set()

    def hold(self) -> None:
        self._open_gate.clear()

    def release(self) -> None:
        self._open_gate.set()

    def steps(self, changes: Sequence[Change]) -> Iterator[None]:
        for change in changes:
            for event in change.events:
                if any(text in (event.value or b"") for text in self.rejected):
                    raise ValueError(f"{event.value!r} cannot be stored")
        yield from super().steps(changes)

    def commit(self) -> None:
        self.commits += 1
        assert self._open_gate.wait(10)
        if self.full:
            self.rollback()
            raise StoreUnavailable("the disk is full")
        super().commit()
        if self.loses_answers:
            self.loses_answers = False
            raise StoreUnavailable("the answer of the disk is lost")

    def probe(self) -> None:
        self.probes += 1
        if self.full:
            raise StoreUnavailable("the disk is full")
        super().probe()

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        self._check_readable()
        return super().snapshot(entity)

    def newest_seq(self) -> int:
        self._check_readable()
        return super().newest_seq()

    def answer(self, name: DeliveryName, since: int = 0) -> bytes | None:
        self._check_readable()
        return super().answer(name, since)

    def _check_readable(self) -> None:
        if self.unreadable:
            raise StoreUnavailable("a page cannot be read")


class ConnectionHarness:
    """A connection from reader to outbox, over a link that confirms messages itself."""

    made: ClassVar[list[ConnectionHarness]] = []
    """The connections to close at the end of the test."""

    journal: Journal
    store: Store
    clock: Clock
    decider: Decider
    streams: SubscriptionManager
    assembly: Dispatch
    monitor: PrometheusRegistry
    searching: SearchService
    following: LiveFeeds
    handlers: Mapping[str, SessionHandler]
    kept: KeptRows

    def __init__(
        self,
        *sources: Mapping[str, Any],
        journal: Journal | None = None,
        decider: Callable[[Store], Decider] | None = None,
        beside: ConnectionHarness | None = None,
        cold: Callable[[], LakeHistory] | None = None,
        tracing: Tracing | None = None,
        kept: KeptRows | None = None,
        quota_check: Callable[[Store], QuotaCheck] | None = None,
        quotas: Quotas | None = None,
        **more: Any,
    ) -> None:
        """`beside` is another connection of the same service, which has another ID.

        `cold` opens the service's lake, `tracing` records its spans, `kept` are stored rows of sessions.
        """
        self.now = NOW
        self.journal = beside.journal if beside is not None else journal or Disk()
        if beside is not None:
            self.store, self.clock, self.decider = beside.store, beside.clock, beside.decider
            self.streams, self.assembly, self.monitor = beside.streams, beside.assembly, beside.monitor
            self.searching, self.following, self.handlers = beside.searching, beside.following, beside.handlers
            self.kept = beside.kept
        else:
            self.store = Store(self.journal, HASTY, cold=cold)
            self.clock = Clock()
            self.decider = decider(self.store) if decider is not None else Decider(self.store, now=lambda: self.now)
            self.search = SlowSearch(self.journal)
            self.searching = SearchService(self.store, self.decider.world, lambda: self.now, self._open_search)
            self.row_budget = RowBudget()
            self.streams = SubscriptionManager(self._open_feed, SubscriptionLimits(), self.clock.now)
            self.following = LiveFeeds(self.store, clock=self.clock.now)
            self.kept = kept or KeptRows()
            self.kept.queue = lambda: self.store.commits.execute(lambda _: None)
            services = SessionServices(
                self.store,
                self.streams,
                self.decider,
                self.clock.now,
                lambda: self.now,
                self.kept.of,
                quotas=quotas or Quotas(()),
            )
            self.handlers = open_handlers(services)
            checked = quota_check(self.store) if quota_check is not None else None
            self.assembly = assemble(
                self.store,
                self.streams,
                self.decider,
                self.handlers,
                self.clock.now,
                checked,
                self.searching.pace,
            )
            self.monitor = PrometheusRegistry()
            self.monitor.watch_subscriptions(lambda: self.streams)
        self.outbox = Outbox()
        self.link = ConfirmingLink()
        self.outbox.attach(self.link)
        self.connection = connection(*sources, **more)
        meter = self.monitor.meter(self.connection.id)
        self.host = host = ScriptHost()
        tracer = tracing.of(self.connection) if tracing is not None else None
        self.readers = [
            SourceReader(*reply_publishers(self.connection, index, self.outbox, meter, lambda: self.now, host, tracer))
            for index in range(len(self.connection.sources))
        ]
        self.targets = [
            TargetPublisher(self.connection, index, self.outbox, meter, lambda: self.now, host, tracer)
            for index in range(len(self.connection.targets))
        ]
        self.dispatcher = self.assembly.dispatcher
        self.event_publisher = self.assembly.event_publisher
        self.ledger = DeliveryLedger()
        self.routes = [route for reader in self.readers for route in reader.routes]
        self.opened = OpenConnection(self.connection, self.targets, self.routes)
        for component in self.assembly.components:
            if component is not self.event_publisher:
                component.opened(self.opened)
        self.postponed: list[InboundDelivery] = []
        self.outcomes: list[tuple[str | None, Outcome]] = []
        self._number = 0
        ConnectionHarness.made.append(self)

    @property
    def disk(self) -> Disk:
        assert isinstance(self.journal, Disk)
        return self.journal

    def _open_search(self, pace: ThreadPace) -> SearchConnection:
        return self.search.opened(pace) if isinstance(self.journal, Disk) else SqliteSearch(self.journal.path, pace)

    def _open_feed(self, signal: Subscribe, subjects: tuple[str, ...]) -> Feed | Fault:
        if isinstance(signal.query, SearchQuery):
            return open_search(self.searching, self.row_budget, signal.query, signal.headers, subjects, 60.0)
        query = signal.query
        if isinstance(query, SessionQuery):
            return cast("Feed | Fault", query.open())
        return EntityFeeds(self.store, self.decider.world, self.following, lambda: self.now).open(query, subjects)

    async def follow(self) -> Self:
        """Send the events of twins to the targets of this connection, from their positions on."""
        await self.event_publisher.prepare(self.connection)
        self.event_publisher.opened(self.opened)
        return self

    def close_connection(self) -> None:
        """Close this connection like its supervisor."""
        for component in self.assembly.components:
            component.closed(self.connection.id)

    def reader(self, address: str, reader_status: ReaderStatus) -> None:
        """Report a reader's status like a link."""
        for component in self.assembly.components:
            component.reader(self.connection.id, address, reader_status)

    @property
    def request_reply(self) -> RequestReply:
        handler = self.dispatcher._handlers[Message]
        assert isinstance(handler, LiveHandler)
        return handler._request_reply

    def waiting_deliveries(self) -> int:
        return self.request_reply.pending.waiting_deliveries(self.connection.id)

    def sweep_sessions(self) -> None:
        for handler in self.handlers.values():
            handler.sweep()

    async def close(self) -> None:
        """Release the disk and stop the store's thread."""
        if isinstance(self.journal, Disk):
            self.journal.full = self.journal.unreadable = False
            self.journal.release()
        await self.host.close()
        await self.searching.close()
        await self.event_publisher.close()
        await self.store.close()

    # incoming

    def delivery(self, payload: bytes, name: str | None = "", *, redelivered: bool = False, **headers: str) -> Delivery:
        """Return a delivery, by default with a name of its own; None for a delivery without a name."""
        self._number += 1
        name = f"d{self._number}" if name == "" else name

        def ended(_: Delivery, outcome: Outcome) -> None:
            self.outcomes.append((name, outcome))

        mapped = {key.replace("_", "-"): value for key, value in headers.items()}
        return Delivery(Envelope(payload, mapped), "in", name, redelivered, ended)

    def handle(self, *deliveries: Delivery, source: int = 0) -> None:
        """Handle one batch of deliveries."""
        self.dispatcher.handle(read(self.readers[source], deliveries, self.ledger), self.postponed.extend)

    def deliver(self, *payloads: bytes, source: int = 0, **headers: str) -> list[Delivery]:
        """Handle one batch of deliveries with these payloads."""
        deliveries = [self.delivery(payload, redelivered=False, **headers) for payload in payloads]
        self.handle(*deliveries, source=source)
        return deliveries

    async def ask(self, payload: bytes, **options: Any) -> dict[str, Any]:
        """Send a command and return its response."""
        before = len(self.link.published)
        self.deliver(payload, **options)
        await until(lambda: len(self.link.published) > before)
        return self.answers()[before]

    async def redeliver(self, payload: bytes, name: str = "d2", **headers: str) -> dict[str, Any]:
        """Deliver a marked redelivery and return its response."""
        before = len(self.link.published)
        self.handle(self.delivery(payload, name, redelivered=True, **headers))
        await until(lambda: len(self.link.published) > before)
        return self.answers()[before]

    async def has_lamp(self, name: str = "lamp-7", *owners: str) -> None:
        """Create a lamp, and forget the response."""
        assert (await self.ask(creation(name, *owners)))["status"] == 201
        await self.settled(1)
        self.forget()

    def forget(self) -> None:
        """Forget what was published and settled so far."""
        self.link.published.clear()
        self.outcomes.clear()

    # outgoing

    def answers(self) -> list[dict[str, Any]]:
        """Return all published messages, oldest first."""
        return [json.loads(message.envelope.payload) for message in self.link.published]

    def correlations(self) -> list[str]:
        return [answer["headers"]["correlation-id"] for answer in self.answers()]

    def statuses(self) -> list[int]:
        return [answer["status"] for answer in self.answers()]

    async def settled(self, number: int) -> list[str | None]:
        """Wait until `number` deliveries have ended, all of them settled, and return their names."""
        await until(lambda: len(self.outcomes) >= number)
        assert {outcome for _, outcome in self.outcomes} == {Outcome.SETTLED}
        return [name for name, _ in self.outcomes]

    async def ended(self, number: int) -> list[Outcome]:
        """Wait until `number` deliveries have ended, and return their outcomes."""
        await until(lambda: len(self.outcomes) >= number)
        return [outcome for _, outcome in self.outcomes]

    def history(self, entity: EntityId = LAMP) -> list[Event]:
        return self.journal.events(entity, 1, 2**62, 1000, 1 << 30)

    def values(self, entity: EntityId = LAMP) -> list[Any]:
        """Return the values written to a lamp after its creation, oldest first."""
        return [json.loads(event.value) for event in self.history(entity)[1:] if event.value is not None]

    def count(self, direction: str, outcome: str) -> float:
        """Return the value of `connectivity_deliveries_total`."""
        labels = {"connection": self.connection.id, "direction": direction, "outcome": outcome}
        return self.monitor.registry.get_sample_value("connectivity_deliveries_total", labels) or 0.0


class ConfirmingLink(Link):
    """A link that confirms immediately while `confirms`, and refuses messages with the error `refuses`.

    It also refuses messages to the addresses in `unroutable`.
    """

    def __init__(self, window: int = 100) -> None:
        super().__init__(window)
        self.confirms = True
        self.refuses: ConnectivityError | None = None
        self.unroutable: set[str] = set()

    def publish(self, message: OutboundMessage, done: Done) -> None:
        super().publish(message, done)
        if self.confirms:
            is_routed = message.address not in self.unroutable
            self.confirm(error=self.refuses if is_routed else MessageRefused(f"no queue {message.address}"))


class HoldingLink(ConfirmingLink):
    """A link that confirms immediately, except for addresses in `held`.

    `received` has functions by address, which `publish` calls.
    """

    def __init__(self) -> None:
        super().__init__(window=10_000)
        self.by_address: defaultdict[str, list[OutboundMessage]] = defaultdict(list)
        self.held: dict[str, list[Done]] = {}
        self.received: dict[str, Callable[[], None]] = {}

    def publish(self, message: OutboundMessage, done: Done) -> None:
        self.published.append(message)
        self.by_address[message.address].append(message)
        if (held := self.held.get(message.address)) is not None:
            held.append(done)
        else:
            done(None)
        if (on_message := self.received.get(message.address)) is not None:
            on_message()

    def confirm_at(self, address: str) -> None:
        """Confirm the held messages of an address, and hold further ones."""
        ready, self.held[address] = self.held.get(address, []), []
        for done in ready:
            done(None)

    def hold_no_more(self, address: str) -> None:
        """Confirm the held messages of an address, and all further ones immediately."""
        for done in self.held.pop(address, ()):
            done(None)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that takes milliseconds."""
    await wait_until(condition, poll=0.0005)


async def pause(turns: int = 50) -> None:
    """Let all tasks run until they wait."""
    for _ in range(turns):
        await asyncio.sleep(0)
