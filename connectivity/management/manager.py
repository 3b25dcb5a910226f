"""Carries out the operations on connections.

A command is checked, then stored, then carried out, as with Ditto's connections (side effects). Commands on one connection
wait for each other, those on others do not. A command that has begun is finished, even if its client disconnects.

The API cannot change what a file owns; it may open and close it until the file changes. A stored connection is validated
again when it is opened and when the service starts, since its references may be gone: then it stays closed with a problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

import structlog

from connectivity.connections.lifecycle import Status
from connectivity.connections.model import Connection, ConnectionStatus
from connectivity.connections.secret_references import NOTHING, ReferenceRules
from connectivity.connections.vault import Document, Vault, mask
from connectivity.errors import ConnectivityError, DefinitionError, OperationRefused
from connectivity.management import faults
from connectivity.management.definition import (
    Definition,
    Judge,
    Owner,
    PastRevision,
    Permit,
    SampleMessage,
    is_past_revision,
    permit_all,
)
from connectivity.management.reconciler import CLOSED, OPEN, DesiredConnection
from connectivity.management.refusals import refuse_file, refuse_secret_failures, refuse_store_failures
from connectivity.management.registry import ConnectionRegistry
from connectivity.management.status_report import closed_status, metrics_of, unusable_status
from connectivity.management.subscription_table import SHOWN, SubscriptionTable
from connectivity.monitoring.meter import Meter
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.store.connection_repository import ConnectionRepository
from connectivity.validation.validator import parse
from spark_store.errors import CommitFailed, StoreError
from spark_store.records import AuditEntry, FileNote, StoredRevision

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")

OPEN_SECONDS = 55.0
"""How long an operator waits for the clients of a connection that is being opened."""

TESTS_AT_ONCE = 8
"""How many connections are tested at the same time. Each may have links and script processes."""

_SHORT = 2048
"""Characters of a document that takes about a millisecond to read."""

_LISTED_AT_ONCE = 200
"""How many connections are listed before other tasks get a turn on the event loop."""

UNKNOWN = "unknown"
"""The default status of a connection without one."""

_ACTIONS = {OPEN: "open", CLOSED: "close"}


class ConnectionManager:
    """The connections of a service, for its operators.

    `by` is the name for the audit log. A change is durable when its method returns. All methods raise OperationRefused, with
    the errors of `connectivity.management.faults`.
    """

    def __init__(
        self,
        registry: ConnectionRegistry,
        definitions: ConnectionRepository,
        vault: Vault,
        monitor: PrometheusRegistry,
        subscriptions: SubscriptionTable,
        connection_test: Callable[[Connection, SampleMessage | None], Awaitable[Mapping[str, Any]]],
        *,
        references: ReferenceRules = NOTHING,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        patience: float = OPEN_SECONDS,
    ) -> None:
        """`references`: what the documents may name; `patience`: as `OPEN_SECONDS`."""
        self._registry = registry
        self._definitions = definitions
        self._vault = vault
        self._monitor = monitor
        self._subscriptions = subscriptions
        self._connection_test = connection_test
        self._references = references
        self._now = now
        self._patience = patience
        self._trying = asyncio.Semaphore(TESTS_AT_ONCE)
        self._last: dict[str, int] = {}
        """The last revision of every id that the API owns or owned."""
        self._doubtful: set[str] = set()
        """IDs whose failed changes the store may have stored."""
        self._working: set[asyncio.Task[Any]] = set()

    async def load(self) -> None:
        """Load the stored connections, before the folder: what the API owns stays the API's.

        Raises StoreUnavailable.
        """
        self._registry.notes.update((note.id, note) for note in self._definitions.file_notes())
        stored = self._definitions.current()
        for it in stored:
            self._last[it.id] = it.revision
            if it.document is None:
                self._leave(it.id, it.revision, it.modified)
        found = await asyncio.to_thread(lambda: [self._read(it) for it in stored if it.document is not None])
        for wanted in found:
            for problem in wanted.problems:
                log.error("stored connection cannot be used", connection=wanted.id, problem=problem)
            self._registry.put(wanted)
        self._registry.reconcile(wanted.id for wanted in found if wanted.running is not None)

    def _leave(self, connection_id: str, revision: int, modified: str) -> None:
        """Note a connection that the API has deleted: a file with its ID continues the revisions."""
        notes = self._registry.notes
        if (note := notes.get(connection_id)) is None or note.revision < revision:
            notes[connection_id] = FileNote(connection_id, revision, "", modified, None)
            self._registry.remove(connection_id)

    def _read(self, stored: StoredRevision) -> DesiredConnection:
        """A stored connection, checked again."""
        document = json.loads(stored.document or "{}")
        connection, problems = self.revalidate(document)
        modified = datetime.fromisoformat(stored.modified)
        return DesiredConnection(
            stored.id, Owner.API, document, connection, stored.revision, modified, problems=problems
        )

    def revalidate(self, stored: Document) -> tuple[Connection | None, tuple[str, ...]]:
        """Return the connection of a stored document with its present secrets, or its problems."""
        try:
            return self._parse(self._vault.unseal(stored)), ()
        except DefinitionError as error:
            return None, tuple(str(problem) for problem in error.problems)
        except ConnectivityError as error:
            return None, (str(error),)

    def ids(self) -> Sequence[str]:
        """Return the IDs of all connections, sorted."""
        return sorted(self._registry.known)

    async def definitions(self) -> Sequence[Definition]:
        """Return all connections, sorted by ID."""
        shown: list[Definition] = []
        for wanted in sorted(self._registry.known.values(), key=lambda it: it.id):
            if len(shown) % _LISTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            shown.append(self._definition_of(wanted))
        return shown

    async def definition(self, connection_id: str, at: PastRevision | None = None) -> Definition:
        """Return a connection as it is now or was at `at`."""
        return self._definition_of(self._desired(connection_id)) if at is None else self._past(connection_id, at)

    def _past(self, connection_id: str, at: PastRevision) -> Definition:
        if (wanted := self._of_file(connection_id)) is not None:
            # Its past is in the history of the file.
            if is_past_revision(at, wanted.revision, wanted.modified):
                return self._definition_of(wanted)
            raise OperationRefused(faults.no_history(connection_id))
        if not (found := self._revisions(connection_id)):
            raise OperationRefused(faults.not_found(connection_id))
        for revision in found:
            modified = datetime.fromisoformat(revision.modified)
            if is_past_revision(at, revision.revision, modified):
                if revision.document is None:
                    break
                document = mask(json.loads(revision.document))
                return Definition(connection_id, document, revision.revision, Owner.API, modified)
        raise OperationRefused(faults.no_history(connection_id))

    async def revisions(self, connection_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the revisions of a connection, newest first: `revision`, `modified`, `by`, `action`."""
        found = self._revisions(connection_id)
        if (of_file := self._of_file(connection_id)) is not None:
            by = str(of_file.file)
            return [{"revision": of_file.revision, "modified": of_file.modified, "by": by, "action": "file"}]
        if not found:
            raise OperationRefused(faults.not_found(connection_id))
        return [
            {"revision": it.revision, "modified": datetime.fromisoformat(it.modified), "by": it.by, "action": it.action}
            for it in found
        ]

    def _revisions(self, connection_id: str) -> list[StoredRevision]:
        with refuse_store_failures():
            return self._definitions.revisions(connection_id)

    def _of_file(self, connection_id: str) -> DesiredConnection | None:
        """Return the connection with this ID if a file owns it."""
        known = self._registry.known.get(connection_id)
        return known if known is not None and known.owner is Owner.FILE else None

    async def audit(self, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """Return the audit log, newest first: `at`, `by`, `action`, `connection`, `revision`."""
        with refuse_store_failures():
            found = self._definitions.audit_entries(limit)
        return [{**it._asdict(), "at": datetime.fromisoformat(it.at)} for it in found]

    def _desired(self, connection_id: str) -> DesiredConnection:
        if (found := self._registry.known.get(connection_id)) is None:
            raise OperationRefused(faults.not_found(connection_id))
        return found

    def _definition_of(self, wanted: DesiredConnection) -> Definition:
        return Definition(
            wanted.id,
            {**mask(wanted.document), "connectionStatus": wanted.status},
            wanted.revision,
            wanted.owner,
            wanted.modified,
            wanted.file,
            wanted.override,
            wanted.problems,
        )

    async def create(self, document: Document, by: str, permit: Permit = permit_all) -> Definition:
        """Create a connection; an `id` is generated if the document has none. Does not wait for the broker."""
        connection_id = named if isinstance(named := document.get("id"), str) else str(uuid4())
        defaults = {"id": connection_id, "connectionStatus": UNKNOWN}

        async def staged() -> Definition:
            self._refuse_known(connection_id)
            absent = {name: value for name, value in defaults.items() if document.get(name) is None}
            wanted = await self._validate({**document, **absent}, permit)
            self._refuse_known(connection_id)
            wanted = await self._store(wanted, by, "create")
            self._registry.reconcile([connection_id])
            return self._definition_of(wanted)

        return await self._run_in_turn(connection_id, staged)

    async def put(
        self, connection_id: str, document: Document, by: str, judge: Judge, permit: Permit = permit_all
    ) -> tuple[Definition, bool]:
        """Create or replace a connection; return whether it is new. Returns when the change runs."""

        async def staged() -> tuple[Definition, bool]:
            former = self._registry.known.get(connection_id)
            if former is not None:
                refuse_file(former)
                self._require(permit, former)
            if (named := document.get("id", connection_id)) != connection_id:
                raise OperationRefused(faults.other_id(connection_id, named))
            wanted = await self._validate({**document, "id": connection_id}, permit, former)
            if former is None:
                self._refuse_known(connection_id)
            judge(None if former is None else former.revision)
            wanted = await self._store(wanted, by, "create" if former is None else "modify")
            if former is None:
                self._registry.reconcile([connection_id])
                return self._definition_of(wanted), True
            await self._run(connection_id)
            return self._definition_of(wanted), False

        return await self._run_in_turn(connection_id, staged)

    async def delete(self, connection_id: str, by: str, judge: Judge, permit: Permit = permit_all) -> None:
        """Delete and close a connection of the API."""

        async def staged() -> None:
            wanted = self._desired(connection_id)
            refuse_file(wanted)
            self._require(permit, wanted)
            judge(wanted.revision)
            revision, modified = await self._add(connection_id, None, by, "delete")
            await self._end(connection_id, revision, modified.isoformat())

        await self._run_in_turn(connection_id, staged)

    async def _end(self, connection_id: str, revision: int, modified: str) -> None:
        """Close a connection that was deleted, and delete its counts."""
        self._leave(connection_id, revision, modified)
        await self._registry.carry_out(connection_id)
        self._monitor.erase(connection_id)

    async def open(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        """Open the connection durably, and wait for its clients."""

        async def staged() -> None:
            await self._set_status(connection_id, OPEN, by, permit)
            if (running := self._registry.get(connection_id)) is not None:
                running.enable_logs()
            # A running connection without link is retried at once.
            await self._run(connection_id, reconnect=running is not None and running.status is not Status.OPEN)

        await self._run_in_turn(connection_id, staged)

    async def close(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        """Close the connection durably."""

        async def staged() -> None:
            await self._set_status(connection_id, CLOSED, by, permit)
            await self._registry.carry_out(connection_id)

        await self._run_in_turn(connection_id, staged)

    async def _set_status(self, connection_id: str, status: str, by: str, permit: Permit) -> None:
        """Set and store the desired status."""
        wanted = self._desired(connection_id)
        self._require(permit, wanted)
        if wanted.owner is Owner.FILE:
            await self._override(wanted, status, by)
            return
        if status == OPEN:
            # Its references may have changed since it was stored.
            connection, problems = await asyncio.to_thread(self.revalidate, wanted.document)
            if connection is None:
                self._registry.put(replace(wanted, problems=problems))
                raise OperationRefused(faults.unusable(connection_id, problems))
            wanted = replace(wanted, connection=connection, problems=())
        if wanted.status == status:
            self._registry.put(wanted)
            await self._note(by, _ACTIONS[status], connection_id, wanted.revision)
            return
        document = {**wanted.document, "connectionStatus": status}
        connection = wanted.connection and wanted.connection.model_copy(
            update={"connection_status": ConnectionStatus(status)}
        )
        await self._store(replace(wanted, document=document, connection=connection), by, _ACTIONS[status])

    async def _override(self, wanted: DesiredConnection, status: str, by: str) -> None:
        own = str(wanted.document.get("connectionStatus", CLOSED))
        override = None if status == own else status
        if override == wanted.override:
            await self._note(by, _ACTIONS[status], wanted.id, wanted.revision)
            return
        note = FileNote(wanted.id, wanted.revision + 1, wanted.digest, self._now().isoformat(), override)
        with self._stored_for(wanted.id):
            await self._definitions.override(
                note, AuditEntry(note.modified, by, _ACTIONS[status], wanted.id, note.revision)
            )
        latest = self._desired(wanted.id)
        if latest.digest == wanted.digest:
            # Otherwise the file has changed meanwhile, and so ended this before it began.
            self._overrule(latest, note)

    async def _run(self, connection_id: str, *, reconnect: bool = False) -> None:
        """Make the connection run as desired; wait for its clients if it opens."""
        if (running := await self._registry.carry_out(connection_id, reconnect=reconnect)) is None:
            return
        try:
            async with asyncio.timeout(self._patience):
                await running.attempted.wait()
        except TimeoutError:
            raise OperationRefused(
                faults.not_opened(connection_id, f"no connection attempt completed within {self._patience:g} s")
            ) from None
        if running.status is not Status.OPEN:
            raise OperationRefused(faults.not_opened(connection_id, running.status_details))

    def _refuse_known(self, connection_id: str) -> None:
        if (known := self._registry.known.get(connection_id)) is not None:
            refuse_file(known)
            raise OperationRefused(faults.exists(connection_id))

    async def _validate(
        self, document: Document, permit: Permit, former: DesiredConnection | None = None
    ) -> DesiredConnection:
        """Return the document as it is to be stored, with its connection.

        Raises OperationRefused with all its problems.
        """
        connection, complete = await self._usable(document, permit, former)
        if former is not None and (kind := former.document.get("connectionType")) != connection.connection_type:
            raise OperationRefused(faults.other_type(connection.id, str(kind), connection.connection_type))
        with refuse_secret_failures(connection.id):
            sealed = self._vault.seal(complete)
        return DesiredConnection(connection.id, Owner.API, sealed, connection, 0, self._now())

    async def _usable(
        self, document: Document, permit: Permit, former: DesiredConnection | None
    ) -> tuple[Connection, Document]:
        """Return the connection of a document, and the document with its masked secrets."""
        try:
            with refuse_secret_failures(str(document["id"])):
                complete = self._vault.keep(document, None if former is None else former.document)
            # A short one is read in less time than a thread takes to have its turn beside a busy loop.
            text = json.dumps(complete, default=str)
            is_quick = len(text) <= _SHORT and "${file:" not in text
            connection = self._parse(complete) if is_quick else await asyncio.to_thread(self._parse, complete)
        except DefinitionError as error:
            raise OperationRefused(faults.invalid(error.problems), error.problems) from None
        permit(connection, self._connections())
        return connection, complete

    def _require(self, permit: Permit, wanted: DesiredConnection) -> None:
        """Refuse an operation on a connection that the client may not have. Raises OperationRefused."""
        permit(wanted.connection, self._connections())

    def _connections(self) -> list[Connection]:
        return [it.connection for it in self._registry.known.values() if it.connection is not None]

    def _parse(self, document: Document) -> Connection:
        return parse(dict(document), references=self._references)

    async def _store(self, wanted: DesiredConnection, by: str, action: str) -> DesiredConnection:
        """Store the next revision of a connection, and make it the desired one."""
        with self._registry.claim(wanted.id):
            revision, modified = await self._add(wanted.id, wanted.document, by, action)
            stored = replace(wanted, revision=revision, modified=modified)
            self._registry.put(stored)
        return stored

    async def _add(self, connection_id: str, document: Document | None, by: str, action: str) -> tuple[int, datetime]:
        note = self._registry.notes.get(connection_id)
        revision = max(self._last.get(connection_id, 0), note.revision if note is not None else 0) + 1
        modified = self._now()
        text = None if document is None else json.dumps(document, ensure_ascii=False)
        row = StoredRevision(connection_id, revision, text, modified.isoformat(), by, action)
        with self._stored_for(connection_id):
            await self._definitions.add(row, AuditEntry(row.modified, by, action, connection_id, revision))
        self._last[connection_id] = revision
        return revision, modified

    @contextlib.contextmanager
    def _stored_for(self, connection_id: str) -> Iterator[None]:
        """Refuse the operation if the store fails, and check its result later."""
        try:
            yield
        except StoreError as error:
            self._doubtful.add(connection_id)
            may_be_stored = isinstance(error, CommitFailed)
            raise OperationRefused(faults.unavailable(str(error), may_be_stored=may_be_stored)) from error

    async def recover(self) -> None:
        """Find changes that were stored although the store reported an error.

        To be called about once a second.
        """
        for connection_id in list(self._doubtful):
            if self._registry.is_busy(connection_id):
                # A running operation may take long. The next round, or the next command, looks again.
                continue
            async with self._registry.turn(connection_id):
                await self._look_again(connection_id)

    async def _look_again(self, connection_id: str) -> None:
        """A commit that failed may have been carried out all the same."""
        if connection_id not in self._doubtful or not self._definitions.is_available:
            return
        if (of_file := self._of_file(connection_id)) is not None:
            await self._look_for_override(of_file)
            return
        found = self._revisions(connection_id)
        self._doubtful.discard(connection_id)
        if not found or found[0].revision <= self._last.get(connection_id, 0):
            return
        newest = found[0]
        self._last[connection_id] = newest.revision
        log.warning("change stored despite a reported failure", connection=connection_id, revision=newest.revision)
        if newest.document is None:
            await self._end(connection_id, newest.revision, newest.modified)
            return
        self._registry.put(await asyncio.to_thread(self._read, newest))
        await self._registry.carry_out(connection_id)

    async def _look_for_override(self, wanted: DesiredConnection) -> None:
        with refuse_store_failures():
            note = next((note for note in self._definitions.file_notes() if note.id == wanted.id), None)
        self._doubtful.discard(wanted.id)
        if note is None or note.revision <= wanted.revision or note.digest != wanted.digest:
            return
        log.warning("change stored despite a reported failure", connection=wanted.id, revision=note.revision)
        self._overrule(wanted, note)
        await self._registry.carry_out(wanted.id)

    def _overrule(self, wanted: DesiredConnection, note: FileNote) -> None:
        """Apply an operator's override to a connection that a file owns."""
        self._registry.notes[wanted.id] = note
        modified = datetime.fromisoformat(note.modified)
        self._registry.put(replace(wanted, revision=note.revision, modified=modified, override=note.override))

    async def _run_in_turn(self, connection_id: str, staged: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Carry out a command in its turn, to its end, whether or not its client waits."""

        async def whole() -> Answer:
            async with self._registry.turn(connection_id):
                await self._look_again(connection_id)
                return await staged()

        return await self._to_its_end(whole())

    async def _to_its_end(self, whole: Coroutine[Any, Any, Answer]) -> Answer:
        task = asyncio.get_running_loop().create_task(whole)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await asyncio.shield(task)

    async def test(
        self, document: Document, sample: SampleMessage | None = None, permit: Permit = permit_all
    ) -> Mapping[str, Any]:
        """Test a connection; return the result for each source and target, and of the sample. Stores nothing."""
        # Labels and templates use the ID in the document; the broker sees another one.
        named = document if document.get("id") is not None else {**document, "id": f"{uuid4()}-dry-run"}
        former = self._registry.known.get(str(named["id"]))
        if former is not None and former.owner is Owner.API:
            self._require(permit, former)
        else:
            former = None
        # Masks in the document are secrets of the stored one.
        connection, _ = await self._usable(named, permit, former)
        async with self._trying:
            return await self._connection_test(connection, sample)

    def status(self, connection_id: str) -> Mapping[str, Any]:
        """Return the status of a connection, as `GET …/status` shows it."""
        wanted, running = self._desired(connection_id), self._registry.get(connection_id)
        if running is not None:
            shown = running.status_report(wanted.status)
        elif wanted.connection is None:
            shown = unusable_status(wanted.id, wanted.status, "; ".join(wanted.problems))
        else:
            shown = closed_status(wanted.id, wanted.status)
        problems = {"problems": list(wanted.problems)} if wanted.problems else {}
        override = {"override": wanted.override} if wanted.override else {}
        return {**shown, **override, **problems}

    def metrics(self, connection_id: str) -> Mapping[str, Any]:
        """Return the metrics of a connection, as `GET …/metrics` shows them."""
        wanted, running = self._desired(connection_id), self._registry.get(connection_id)
        connection = wanted.connection if running is None else running.connection
        return metrics_of(self._monitor.find_meter(connection_id), connection)

    def logs(self, connection_id: str) -> Mapping[str, Any]:
        """Return the log of a connection, as `GET …/logs` shows it; an empty one if it does not run."""
        meter = self._monitor.find_meter(self._desired(connection_id).id)
        return {"connectionId": connection_id, **meter.log.read()}

    async def reset_metrics(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        """Set the metrics to zero."""
        await self._audited(lambda meter: meter.reset(), connection_id, by, "reset metrics", permit)

    async def enable_logs(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        """Keep log entries for the usual time, from now. A closed connection has none."""

        def enable(_meter: Meter) -> None:
            if (running := self._registry.get(connection_id)) is not None:
                running.enable_logs()

        await self._audited(enable, connection_id, by, "enable logs", permit)

    async def reset_logs(self, connection_id: str, by: str, permit: Permit = permit_all) -> None:
        """Forget the log entries."""
        await self._audited(lambda meter: meter.log.reset(), connection_id, by, "reset logs", permit)

    async def _audited(
        self, act: Callable[[Meter], None], connection_id: str, by: str, name: str, permit: Permit
    ) -> None:
        """Carry out an operation on a connection's meter, with an entry in the audit log before."""

        async def whole() -> None:
            wanted = self._desired(connection_id)
            self._require(permit, wanted)
            await self._note(by, name, connection_id, wanted.revision)
            act(self._monitor.find_meter(connection_id))

        await self._to_its_end(whole())

    def subscription_count(self) -> int:
        """Return the number of open subscriptions."""
        return self._subscriptions.subscription_count()

    def subscriptions(self, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return open subscriptions, `limit` at most: see `SubscriptionTable`."""
        return self._subscriptions.subscriptions(limit)

    async def cancel_subscription(self, prefix: str, by: str, permit: Permit = permit_all) -> None:
        """End the subscription whose ID begins like this; 404 for none, 409 for several."""

        async def whole() -> None:
            live = self._subscriptions.one(prefix)
            self._require(permit, self._desired(live.connection_id))
            await self._note(by, "cancel subscription", live.connection_id, None, prefix[:SHOWN])
            self._subscriptions.cancel(live, by)

        await self._to_its_end(whole())

    async def _note(
        self, by: str, action: str, connection_id: str, revision: int | None, details: str | None = None
    ) -> None:
        """Store an entry of the audit log."""
        entry = AuditEntry(self._now().isoformat(), by, action, connection_id, revision, details)
        with refuse_store_failures():
            await self._definitions.audit(entry)
