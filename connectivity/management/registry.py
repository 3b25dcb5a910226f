"""The running connections, kept as their owners want them: connection files, or the API.

`known` is the desired state of every connection; only open ones run. Each changed connection is brought to its desired state
in its own turn, so the last state wins. An unreadable file or a missing folder stops nothing: the last state goes on, and
log and status report the problem. `connectivity.management.watcher` reads files, `connectivity.management.reconciler`
compares them, `connectivity.management.manager` carries out operations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from weakref import WeakValueDictionary

import structlog

from connectivity.connections.model import Connection
from connectivity.connections.vault import mask
from connectivity.management.definition import Owner
from connectivity.management.files import FileProblem, LoadedFolder
from connectivity.management.reconciler import (
    DesiredConnection,
    FolderReading,
    ReconcileStep,
    compare_folder,
    digest_of,
    steps,
)
from connectivity.management.supervisor import Supervisor
from connectivity.management.watcher import FolderUnavailable, FolderWatcher
from spark_store.errors import StoreUnavailable
from spark_store.records import FileNote

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 3.0
"""How long pending responses of a changed connection may take."""


class ConnectionRegistry:
    """The connections of a service."""

    def __init__(
        self,
        watcher: FolderWatcher,
        make: Callable[[Connection], Supervisor],
        ended: Callable[[str], None],
        on_known: Callable[[Callable[[str], bool]], object],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        keep_notes: Callable[[Sequence[FileNote]], Awaitable[None]],
    ) -> None:
        """`make` creates a supervisor; `ended` receives the ID of a connection that is closed for good.

        `on_known` receives a predicate, to be used at once: whether a connection may be open, as far as is known.
        `keep_notes` stores notes on files, and may raise StoreUnavailable.
        """
        self._on_known = on_known
        self._watcher = watcher
        self._make = make
        self._ended = ended
        self._now = now
        self._keep_notes = keep_notes
        self._supervisors: dict[str, Supervisor] = {}
        self._known: dict[str, DesiredConnection] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._settling: set[asyncio.Task[None]] = set()
        self.looked = asyncio.Event()
        """Set when the folder has been read: until then there may be unknown connections."""
        self.folder_problem = ""
        """The folder and why it cannot be read, as long as that is so."""
        self._is_stale = False
        """Whether to look at unchanged files again: an ID may have become free since the last reading."""
        self._may_hide = True
        """Whether there may be connections in unreadable files."""
        self._removed: set[str] = set()
        """IDs that are known to have no connection, even in unreadable files."""
        self._claimed: set[str] = set()
        """Ids that the API is about to own."""
        self.notes: dict[str, FileNote] = {}
        """The notes on connections that files own or owned."""
        self._unkept: dict[str, FileNote] = {}
        self.problems: Sequence[FileProblem] = ()
        """The problems of files."""
        self._is_closing = False

    def __iter__(self) -> Iterator[Supervisor]:
        return iter(self._supervisors.values())

    def __getitem__(self, connection_id: str) -> Supervisor:
        return self._supervisors[connection_id]

    def get(self, connection_id: str) -> Supervisor | None:
        """The supervisor of a connection that runs."""
        return self._supervisors.get(connection_id)

    @property
    def known(self) -> Mapping[str, DesiredConnection]:
        """Every connection there is."""
        return self._known

    @contextlib.asynccontextmanager
    async def turn(self, connection_id: str) -> AsyncIterator[None]:
        """Wait for the turn with a connection: no one else opens, closes or changes it meanwhile."""
        lock = self._locks.setdefault(connection_id, asyncio.Lock())
        async with lock:
            yield

    def is_busy(self, connection_id: str) -> bool:
        """Whether someone has the turn with a connection."""
        lock = self._locks.get(connection_id)
        return lock is not None and lock.locked()

    @contextlib.contextmanager
    def claim(self, connection_id: str) -> Iterator[None]:
        """Keep files from taking an id that is being stored."""
        self._claimed.add(connection_id)
        try:
            yield
        finally:
            self._claimed.discard(connection_id)
            # A file that was kept from it is looked at again, if it came to nothing.
            self._is_stale |= connection_id not in self._known

    def put(self, wanted: DesiredConnection) -> None:
        """A connection is to be this from now on. Nothing is done for it before `carry_out` or `settle`."""
        self._known[wanted.id] = wanted
        self._removed.discard(wanted.id)

    def remove(self, connection_id: str) -> None:
        """There is no such connection any more; a file that waits for the id is looked at again."""
        self._known.pop(connection_id, None)
        self._removed.add(connection_id)
        self._is_stale = True

    async def carry_out(self, connection_id: str, *, reconnect: bool = False) -> Supervisor | None:
        """Make a connection run as desired, in one's turn; with a new link if `reconnect`.

        Does not wait for the broker. Returns the supervisor if the connection is open now.
        """
        wanted = self._known.get(connection_id)
        target = None if wanted is None else wanted.running
        running = self._supervisors.get(connection_id)
        todo = steps(target, None if running is None else running.connection)
        reason = "document deleted" if wanted is None else "document or secret changed"
        if wanted is not None and target is None:
            reason = "set to closed"
        if reconnect and target is not None and running is not None:
            todo, reason = (ReconcileStep.CLOSE, ReconcileStep.OPEN), "opened again by an operator"
        for step in todo:
            if step is ReconcileStep.CLOSE:
                await self._close(connection_id, wanted, reason)
            elif self._is_closing:
                break
            elif step is ReconcileStep.OPEN and target is not None:
                self._supervisors[connection_id] = supervisor = self._make(target)
                supervisor.open()
            elif running is not None and target is not None:
                running.connection = target
        if target is None:
            self.announce_desired()
        return self._supervisors.get(connection_id)

    def reconcile(self, connection_ids: Iterable[str]) -> None:
        """Make these connections run as desired, each in its turn, without waiting."""
        for connection_id in connection_ids:
            task = asyncio.get_running_loop().create_task(self._reconcile(connection_id))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def _reconcile(self, connection_id: str) -> None:
        try:
            async with self.turn(connection_id):
                await self.carry_out(connection_id)
        except Exception:
            log.exception("connection not reconciled", connection=connection_id)

    async def _close(self, connection_id: str, wanted: DesiredConnection | None, reason: str) -> None:
        """Close a connection, and log the reason."""
        log.info("connection closed", connection=connection_id, reason=reason)
        supervisor = self._supervisors[connection_id]
        try:
            try:
                successor = None if wanted is None else wanted.connection
                if wanted is None or successor is not None:
                    # A closed connection, too, has sessions at its broker.
                    others = [it.connection for it in self._known.values() if it.connection and it.id != connection_id]
                    await supervisor.hand_over(successor, others)
            finally:
                await supervisor.close(DRAIN_SECONDS)
        except Exception:
            # Its remaining parts end with its link; another one can be created.
            log.exception("connection not closed cleanly", connection=connection_id)
        # Only now: stopping the service must still find it.
        del self._supervisors[connection_id]
        self._ended(connection_id)

    def announce_desired(self) -> None:
        """Say which connections are to be open."""
        self._on_known(self._may_be_open)

    def _may_be_open(self, connection_id: str) -> bool:
        wanted = self._known.get(connection_id)
        if wanted is None:
            return self._may_hide and connection_id not in self._removed
        # One with an invalid document, such as a missing secret, opens when that is corrected.
        return wanted.should_open

    async def refresh(self) -> None:
        """Read the folder, and apply changes. Unchanged connections are not touched."""
        await self.look()
        while self._settling:
            await asyncio.gather(*self._settling)

    async def look(self) -> None:
        """Read the folder, and begin to apply changes."""
        reload, self._is_stale = self._is_stale, False
        try:
            # Validation runs scripts, each in a process of its own, while connections go on.
            reading = await asyncio.to_thread(self._read, reload)
        except FolderUnavailable as error:
            self.looked.set()
            if not self.folder_problem:
                running = "; running connections stay open" if self._supervisors else ""
                hint = f"create it, or set connections_dir{running}"
                log.error("connections folder cannot be read", folder=str(error), hint=hint)
            self.folder_problem = str(error)
            # When it comes back, unchanged files are looked at again, too.
            self._may_hide = self._is_stale = True
        else:
            if reading is not None:
                loaded, digests = reading
                self._take(
                    compare_folder(
                        loaded, self._owned_by(Owner.FILE), self.notes, self._busy_ids(), digests, self._now()
                    )
                )
                # Unreadable files may contain any connection.
                self._may_hide = bool(loaded.problems)
                self.announce_desired()
            self.folder_problem = ""
            self.looked.set()
        await self._write_notes()

    def _read(self, reload: bool) -> tuple[LoadedFolder, Mapping[str, str]] | None:
        """Read changed files and compute digests, in a worker thread."""
        loaded = self._watcher.look(reload=reload)
        if loaded is None:
            return None
        known = self._known
        return loaded, {
            connection_id: former.digest
            if (former := known.get(connection_id)) is not None and former.document is document
            # A digest of the masked document: the journal must not reveal secrets.
            else digest_of(mask(document))
            for connection_id, document in loaded.documents.items()
        }

    def _take(self, found: FolderReading) -> None:
        """Apply the content of files."""
        reported = set(self.problems)
        for problem in found.problems:
            if problem not in reported:
                _notify(problem)
        self.problems = found.problems
        former = self._owned_by(Owner.FILE)
        for connection_id in former.keys() - found.desired.keys():
            del self._known[connection_id]
        self._known.update(found.desired)
        self._removed.difference_update(found.desired)
        for note in found.notes:
            self.notes[note.id] = self._unkept[note.id] = note
        self.reconcile(
            connection_id
            for connection_id in [*former, *(id for id in found.desired if id not in former)]
            if found.desired.get(connection_id) is not former.get(connection_id) and self._has_to_do_with(connection_id)
        )

    def _has_to_do_with(self, connection_id: str) -> bool:
        """Whether a connection runs or should run."""
        wanted = self._known.get(connection_id)
        return connection_id in self._supervisors or (wanted is not None and wanted.running is not None)

    def _owned_by(self, owner: Owner) -> dict[str, DesiredConnection]:
        return {connection_id: wanted for connection_id, wanted in self._known.items() if wanted.owner is owner}

    def _busy_ids(self) -> Container[str]:
        return self._owned_by(Owner.API).keys() | self._claimed

    async def _write_notes(self) -> None:
        """Store the notes. Failures are retried later; nothing depends on them meanwhile."""
        if not self._unkept:
            return
        notes = list(self._unkept.values())
        with contextlib.suppress(StoreUnavailable):
            await self._keep_notes(notes)
            for note in notes:
                if self._unkept.get(note.id) is note:
                    del self._unkept[note.id]

    def stop(self) -> None:
        """Nothing is opened any more."""
        self._is_closing = True


def _notify(found: FileProblem) -> None:
    log.error(
        "connection file has a problem", file=str(found.file), path=found.problem.path, problem=str(found.problem)
    )
