"""The composition root: builds the service from its settings, and runs it until a signal stops it.

Start: lock the data folder, open the journal, load the connection files, listen for HTTP, open the connections. Stop: say
goodbye to sessions, accept no more deliveries, send pending replies, close; at most ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import platform
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import structlog
import uvloop

from connectivity import __version__
from connectivity.api.app import application
from connectivity.api.server import server_of
from connectivity.authorization.quotas import Quotas
from connectivity.config.extras import missing_extras
from connectivity.config.settings import Settings, SparkMode, SubscriptionSettings, TracingSettings
from connectivity.connections.model import Connection
from connectivity.connections.secret_references import ReferenceRules
from connectivity.dispatch.assembly import assemble
from connectivity.dispatch.quota_check import KEEP_SECONDS, RECOUNT_SECONDS, QuotaCheck
from connectivity.errors import SettingsError
from connectivity.maintenance.erasure import Eraser
from connectivity.maintenance.index_builder import LOOK_SECONDS, IndexBuilder
from connectivity.maintenance.job_runner import Job, JobRunner
from connectivity.maintenance.journal_trimmer import ROUND_SECONDS, JournalTrimmer
from connectivity.maintenance.keyring import open_vault
from connectivity.maintenance.pipeline_process import PipelineProcess
from connectivity.maintenance.policy_expiry import PolicyExpiryJob
from connectivity.management.client import Backoff
from connectivity.management.connection_test import run_connection_test
from connectivity.management.manager import ConnectionManager
from connectivity.management.permission_requests import PermissionRequests
from connectivity.management.registry import ConnectionRegistry
from connectivity.management.secret_watcher import SecretWatcher
from connectivity.management.subscription_table import SubscriptionTable
from connectivity.management.supervisor import Supervisor
from connectivity.management.watcher import FolderWatcher
from connectivity.monitoring import logs
from connectivity.monitoring.prometheus import GaugeReading, PrometheusRegistry, file_figures, store_figures
from connectivity.security import egress, redaction
from connectivity.security.descriptors import raise_limit
from connectivity.security.on_behalf import BehalfAudit
from connectivity.security.system_calls import NotSupported, hide_memory
from connectivity.sessions import SessionServices, open_handlers
from connectivity.sessions.base import RetentionTimes
from connectivity.sources.consumer import settlement_metrics
from connectivity.stop_signals import stop_signals
from connectivity.store.connection_repository import ConnectionRepository
from connectivity.store.folder_lock import DataFolderLocked, lock_folder
from connectivity.store.options import StoreOptions
from connectivity.store.session_repository import SessionRepository
from connectivity.store.store import Store
from connectivity.subscriptions.aggregation_feed import RowBudget, open_search
from connectivity.subscriptions.as_of_feed import AsOfSearches, PastOptions
from connectivity.subscriptions.entity_feeds import EntityFeeds
from connectivity.subscriptions.feed import Feed
from connectivity.subscriptions.limits import SubscriptionLimits
from connectivity.subscriptions.live_feed import LiveFeeds
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.subscriptions.search_feed import SearchOptions, SearchService
from connectivity.subscriptions.search_requests import SearchRequests
from connectivity.transports.base import ConsumeOptions
from connectivity.twins.context import TwinLimits
from connectivity.twins.decider import Decider
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import SearchQuery, SessionQuery, Subscribe, SubscriptionKind
from spark_store.errors import StoreError, StoreUnavailable
from spark_store.files import identity_of
from spark_store.lake.tables import Lake
from spark_store.queries.spark_query import SparkQueries
from spark_store.search.sqlite_search import SqliteSearch

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import Tracing
    from spark_store.lake.history_reader import LakeHistory

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 6.0
"""How long pending replies may take. Disconnecting brokers and API clients takes two more at most."""

PIPELINE_SECONDS = 2.0
"""How long the pipeline's last batch may take after that.

Then it is killed, and the batch is repeated.
"""

TRACING_SECONDS = 0.5
"""How long the last spans may take."""

_SWEEP_SECONDS = 1.0

_SWITCH_SECONDS = 0.0005
"""How long a thread may hold the interpreter.

The committing worker needs it for microseconds only; with the default of 5 ms it would wait that long after every commit
while the event loop is busy.
"""


class PortInUse(Exception):
    """Another process listens on the port of the API."""


class Service:
    """One running service."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        settings_file: Path | None = None,
    ) -> None:
        """`settings_file`: the file of the settings, which no reference of a document may read.

        Raises SettingsError for settings that need an extra which is not installed.
        """
        if missing := list(missing_extras(settings)):
            raise SettingsError("\n".join(missing))
        self.settings = settings
        self._now = now
        self.tracing = _tracing(settings.tracing)
        self.monitor = PrometheusRegistry()
        self._lake = Lake(Path(settings.data_dir))
        self._has_lake = settings.spark.mode is not SparkMode.OFF
        self._erased: dict[EntityId, int] = {}
        """Entities that the lake must not show up to the event of this number, since they were erased."""
        self.store = Store.open(
            Path(settings.data_dir) / "journal.db",
            StoreOptions(redelivery_window=settings.journal.redelivery_window.total_seconds()),
            cold=_lake_opener(self._lake, self._erased) if self._has_lake else None,
            on_commit=self.monitor.commit.observe,
        )
        self.decider = Decider(self.store, now=now, limits=_twin_limits(settings))
        quotas = Quotas(settings.quotas)
        self.searching = SearchService(
            self.store,
            self.decider.world,
            now,
            partial(SqliteSearch, str(self.store.path), identity=identity_of(self.store.path)),
            SearchOptions(settings.search.budget.total_seconds(), settings.search.workers),
            quotas,
        )
        self._row_budget = RowBudget()
        self.past = self._as_of_searches(quotas) if self._has_lake else None
        if self.past is not None:
            self.searching.as_of = self.past.open
        definitions = ConnectionRepository(self.store)
        audit = BehalfAudit(now, definitions.audit)
        self.search_requests = SearchRequests(
            self.searching,
            now,
            page_bytes=settings.subscriptions.page_bytes,
            count_timeout=settings.search.budget_for_all.total_seconds(),
            audit=audit,
        )
        self.permission_requests = PermissionRequests(self.decider.decide, audit)
        self.live_feeds = LiveFeeds(self.store)
        self._entity_feeds = EntityFeeds(self.store, self.decider.world, self.live_feeds, now)
        self.subscriptions = SubscriptionManager(
            self._open_feed, _subscription_limits(settings.subscriptions), time.monotonic, quotas
        )
        self.quota_check = QuotaCheck(self.store, quotas, settings.limits.low_space, now)
        self.dispatch = assemble(
            self.store,
            self.subscriptions,
            self.decider,
            open_handlers(self._session_services(quotas)),
            quota_check=self.quota_check,
            search_pace=self.searching.pace,
        )
        self.dispatch.event_publisher.on_skip = self.monitor.skip
        vault = open_vault(settings)
        secrets = settings.secrets
        own_files = [Path(settings.data_dir), *filter(None, (secrets.key_file, settings_file))]
        self.registry = ConnectionRegistry(
            FolderWatcher(
                Path(settings.connections_dir),
                ReferenceRules(own_files, secrets.folders or None),
                is_optional="connections_dir" not in settings.model_fields_set,
            ),
            self._supervisor,
            self.monitor.forget,
            on_known=self._keep_only,
            now=now,
            keep_notes=definitions.note_files,
        )
        self.management = ConnectionManager(
            self.registry,
            definitions,
            vault,
            self.monitor,
            SubscriptionTable(self.subscriptions),
            partial(run_connection_test, max_payload=settings.limits.payload, now=now),
            references=ReferenceRules(own_files, secrets.folders, secrets.variables),
            now=now,
        )
        self.secrets = SecretWatcher(self.registry, self.management.revalidate)
        self._pauses = Backoff(settings.reconnect.min.total_seconds(), settings.reconnect.max.total_seconds())
        self.pipeline = PipelineProcess(settings)
        self.eraser = Eraser(self.store, self.subscriptions, self._lake, self._erased, now)
        self._watch_metrics()
        self.jobs = JobRunner([*self._regular_jobs(), *self._optional_jobs()], self.monitor.count_job_failure)

    def _session_services(self, quotas: Quotas) -> SessionServices:
        rows = partial(SessionRepository, self.store)
        retention_times = RetentionTimes(self.settings.lake.retention, self.settings.spark.mode)
        return SessionServices(
            self.store, self.subscriptions, self.decider, time.monotonic, self._now, rows, retention_times, quotas
        )

    def _watch_metrics(self) -> None:
        """Have each scrape read the gauges of all parts."""
        monitor = self.monitor
        monitor.watch_unusable(self._unusable_connections)
        monitor.watch_subscriptions(lambda: self.subscriptions)
        for figures in (
            self.subscriptions.figures,
            self.searching.figures,
            self.quota_check.figures,
            self.dispatch.event_publisher.figures,
            lambda: store_figures(self.store.commits.is_available),
            lambda: file_figures(len(self._file_problems())),
            self.live_feeds.figures,
            self._settlement_figures,
            self.pipeline.figures,
        ):
            monitor.watch_figures(figures)
        monitor.look_first(self.pipeline.look)

    def _regular_jobs(self) -> Iterator[Job]:
        yield Job("count metrics", self.monitor.tick, _SWEEP_SECONDS)
        for component in self.dispatch.components:
            if component.job:
                yield Job(component.job, component.sweep, _SWEEP_SECONDS)
        yield Job("reject overdue deliveries", self._reject_overdue, _SWEEP_SECONDS)
        yield Job("watch connection files", self._look_for_changes, _SWEEP_SECONDS)
        policy_expiry = PolicyExpiryJob(self.store, self.dispatch.announcements.announce, self._now)
        yield Job("expire policies", policy_expiry.round, _SWEEP_SECONDS)
        yield Job("erase entities", self.eraser.round)

    def _optional_jobs(self) -> Iterator[Job]:
        """Yield the jobs of quotas, the search index and the lake."""
        settings, monitor = self.settings, self.monitor
        if settings.quotas:
            yield Job("count the use of quotas", self.quota_check.recount, RECOUNT_SECONDS)
            yield Job("store the use of quotas", self.quota_check.keep, KEEP_SECONDS)
        yield Job("build the search index", IndexBuilder(self.store, settings.search.indexed_paths).round, LOOK_SECONDS)
        if self._has_lake and (age := settings.journal.retention) is not None:
            trimmer = JournalTrimmer(
                self.store, self._lake, age, self._now, on_trim=monitor.trimmed.inc, on_round=monitor.trimming.set
            )
            yield Job("trim the journal", trimmer.round, ROUND_SECONDS)
            yield Job("find retained events", self.store.retained_history.round, ROUND_SECONDS)

    async def close(self) -> None:
        """Close all connections at the same time, then the store. The pipeline ends its batch meanwhile."""
        self.pipeline.stop()
        self.registry.stop()
        self.subscriptions.abort(SubscriptionKind.SEARCH)
        closing = [supervisor.close(DRAIN_SECONDS) for supervisor in self.registry]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("connection not closed cleanly", exc_info=outcome)
        for component in self.dispatch.components:
            await component.close()
        await self.searching.close()
        if self.past is not None:
            self.past.close()
        await self.pipeline.close(PIPELINE_SECONDS)
        with contextlib.suppress(StoreUnavailable):
            await self.quota_check.keep()
        await self.store.close()
        if self.tracing is not None:
            await self.tracing.close(TRACING_SECONDS)

    def readiness(self) -> tuple[bool, Mapping[str, Any]]:
        """Return whether the service is ready, and the state of its parts."""
        known = self.registry.known.values()
        supervisors = {running.connection.id: running for running in self.registry}
        wanted = [connection.id for connection in known if connection.running is not None]
        has_tried = self.registry.looked.is_set() and all(
            (running := supervisors.get(connection_id)) is not None and running.attempted.is_set()
            for connection_id in wanted
        )
        is_ready = self.store.commits.is_available and has_tried
        shown = {
            connection_id: {"status": running.status.value, "details": running.status_details}
            for connection_id, running in supervisors.items()
        }
        unusable = {
            connection.id: {"status": "misconfigured", "details": "; ".join(connection.problems)}
            for connection in known
            if connection.connection is None
        }
        return is_ready, {
            "status": "ready" if is_ready else "not ready",
            "store": "writable" if self.store.commits.is_available else f"unavailable: {self.store.commits.reason}",
            "connections": {**shown, **unusable},
            "closed": len(known) - len(wanted) - len(unusable),
            "files": self._file_problems(),
            "quotas": self.quota_check.nearly_used(),
            "jobs": self.jobs.problems,
            "lake": self.pipeline.details,
        }

    def _unusable_connections(self) -> Iterator[str]:
        """Yield the connections that should be open, but whose documents are invalid."""
        for wanted in self.registry.known.values():
            if wanted.should_open and wanted.connection is None:
                yield wanted.id

    def _file_problems(self) -> list[str]:
        """Return the problems of connection files, that of an unreadable folder first."""
        problems = [str(problem) for problem in self.registry.problems]
        if unreadable := self.registry.folder_problem:
            problems.insert(0, f"{unreadable}; running connections stay open")
        return problems

    async def _look_for_changes(self) -> None:
        await self.registry.look()
        await self.secrets.look()
        await self.management.recover()

    def _supervisor(self, connection: Connection) -> Supervisor:
        return Supervisor(
            connection,
            self.dispatch,
            self.store,
            self.monitor,
            pauses=self._pauses,
            consume=ConsumeOptions(self.settings.limits.payload, self.settings.source.unsettled_bytes),
            now=self._now,
            tracing=self.tracing,
        )

    def _keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        """Delete what is kept for connections that must not be open, and the counts of unknown ones."""
        for component in self.dispatch.components:
            component.keep_only(is_wanted)
        known = self.registry.known
        self.monitor.keep_only(lambda connection_id: connection_id in known or is_wanted(connection_id))

    def _reject_overdue(self) -> None:
        now, timeout = time.monotonic(), self.settings.source.settle_timeout.total_seconds()
        for supervisor in self.registry:
            supervisor.deliveries.reject_overdue(now, timeout)

    def _settlement_figures(self) -> Iterator[GaugeReading]:
        now = time.monotonic()
        return settlement_metrics(
            {
                (supervisor.connection.id, str(source)): seconds
                for supervisor in self.registry
                for source, seconds in supervisor.deliveries.unsettled_seconds(now).items()
            }
        )

    def _as_of_searches(self, quotas: Quotas) -> AsOfSearches:
        options = PastOptions(
            self.settings.subscriptions.open_timeout.total_seconds(), self.settings.search.past_timeout.total_seconds()
        )
        spark, sees = SparkQueries(self._lake, self.settings.spark.remote), self.searching.sees
        return AsOfSearches(self.store, self.decider.world, spark, self._now, options, quotas, sees)

    def _open_feed(self, subscribe: Subscribe, subjects: tuple[str, ...]) -> Feed | Fault:
        """Return the feed of a subscribe, or the fault."""
        query = subscribe.query
        if isinstance(query, SessionQuery):
            return cast("Feed | Fault", query.open())
        if isinstance(query, SearchQuery):
            seconds = self.settings.search.budget_for_all.total_seconds()
            return open_search(self.searching, self._row_budget, query, subscribe.headers, subjects, seconds)
        return self._entity_feeds.open(query, subjects)


def _twin_limits(settings: Settings) -> TwinLimits:
    return TwinLimits(
        historical_headers=tuple(settings.journal.historical_headers),
        creation=settings.creation.rules,
        token_integration=settings.token_integration.rule,
    )


def _subscription_limits(settings: SubscriptionSettings) -> SubscriptionLimits:
    return SubscriptionLimits(
        idle_timeout=settings.idle_timeout.total_seconds(),
        open_timeout=settings.open_timeout.total_seconds(),
        after_life=settings.after_life.total_seconds(),
        max_per_user=settings.max_per_user,
        page_items=settings.page_items,
        page_bytes=settings.page_bytes,
    )


def _lake_opener(lake: Lake, erased: Mapping[EntityId, int]) -> Callable[[], LakeHistory]:
    """Return a function that opens the lake for reading, once.

    It imports the lake's libraries when it is called.
    """

    @cache
    def opened() -> LakeHistory:
        from spark_store.lake.history_reader import LakeHistory

        return LakeHistory(lake, erased)

    return opened


def _tracing(settings: TracingSettings) -> Tracing | None:
    """Return the tracing that the settings ask for. It imports its libraries only then."""
    if settings.endpoint is None:
        return None
    from connectivity.monitoring.tracing import Tracing

    return Tracing.open(settings)


async def _run(settings: Settings, settings_file: Path | None = None) -> None:
    with egress.enforce(settings.hosts.rules), _listen(settings.api.host, settings.api.port) as listening:
        await _serve(settings, settings_file, listening)


async def _serve(settings: Settings, settings_file: Path | None, listening: socket.socket) -> None:
    service = Service(settings, settings_file=settings_file)
    parts = (service.eraser, service.management, service.search_requests)
    app = application(
        service.monitor,
        service.readiness,
        settings.api,
        *parts,
        permissions=service.permission_requests,
        looked=service.registry.looked,
    )
    server = server_of(app, settings.api)
    stopped_by: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped_by.put_nowait, number)
    api = asyncio.create_task(server.serve([listening]))
    log.info(
        "api listening",
        host=settings.api.host,
        port=listening.getsockname()[1],
        token="required" if settings.api.needs_token else "not required: only this machine can connect",
    )
    await service.management.load()
    await service.quota_check.resume()
    await service.quota_check.recount()
    await service.registry.refresh()
    service.jobs.start()
    service.pipeline.start()
    quiet_garbage_collection()
    log.info("draining", signal=(await stopped_by.get()).name)
    await service.jobs.stop()
    await service.close()
    server.should_exit = True
    await api
    log.info("stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Return the listening socket of the API.

    Raises PortInUse, and SettingsError for an unavailable address.
    """
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"another process uses {host}:{port}; choose another port with api.port or CONNECTIVITY_API__PORT"
            ) from error
        raise SettingsError(f"api.host {host}, api.port {port}: cannot listen: {error}") from error
    listening.listen(128)
    listening.setblocking(False)
    return listening


def quiet_garbage_collection() -> None:
    """Keep objects that exist after the start out of garbage collections, and collect less often.

    Reference counting frees what messages leave behind; a full collection over 100,000 subscriptions would cost a pause.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _secrets(settings: Settings) -> list[str]:
    """Return the service's own secrets."""
    tokens = (settings.api.token, *(it.token for it in settings.api.tokens))
    own = (*tokens, settings.secrets.key, *settings.secrets.old_keys)
    return [secret.get_secret_value() for secret in own if secret is not None]


def main(settings: Settings, settings_file: Path | None = None) -> int:
    """Run the service until SIGTERM, SIGINT or SIGHUP, and return the exit code."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    logs.configure(log_format=settings.log.format, level=settings.log.level)
    logs.install_exception_hooks()
    log.info("starting", version=__version__, python=platform.python_version())
    redaction.remember_own(_secrets(settings))
    raise_limit()
    # A core dump would contain every secret, and so does the memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        hide_memory()
    except NotSupported as error:
        log.warning("memory readable by other processes of the same user", reason=str(error))
    try:
        with lock_folder(Path(settings.data_dir)):
            uvloop.run(_run(settings, settings_file))
    except SettingsError as error:
        log.error("invalid settings", reason=str(error))
        return 2
    except StoreError as error:
        log.error("journal not opened", reason=str(error))
        return 1
    except DataFolderLocked as error:
        log.error("data folder is locked", reason=str(error))
        return 3
    except PortInUse as error:
        log.error("port in use", reason=str(error))
        return 4
    return 0
