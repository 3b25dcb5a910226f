"""One open connection, and the components of the service that keep something for each of them.

The supervisor of a connection notifies every component of the one list when it opens and closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from connectivity.connections.model import Connection
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.targets.target import TargetPublisher
from connectivity.transports.base import ReaderStatus


@dataclass(frozen=True, slots=True)
class DivertingOptions:
    """The diversion options in a connection's `specificConfig`."""

    is_source: bool = False
    is_target: bool = False
    preserves_original: bool = False
    """Whether a diverted response goes to the reply-target too."""
    authorized: frozenset[str] = frozenset()
    """The connections whose responses are accepted."""

    @classmethod
    def of(cls, connection: Connection) -> DivertingOptions:
        options = connection.specific_config

        def flag(name: str) -> bool:
            return options.get(name, "").lower() == "true"

        authorized = options.get("authorized-connections-as-sources", "").split(",")
        return cls(
            flag("is-diversion-source"),
            flag("is-diversion-target"),
            flag("preserve-normal-response-via-source"),
            frozenset(filter(None, map(str.strip, authorized))),
        )


class OpenConnection:
    """One open connection: its targets, and the routes of its sources, one for each payload mapper."""

    def __init__(
        self, connection: Connection, targets: Sequence[TargetPublisher], routes: Sequence[ReplyTargetPublisher] = ()
    ) -> None:
        self.connection = connection
        self.connection_id = connection.id
        self.targets = tuple(targets)
        self.routes = tuple(routes)
        self.declared = frozenset().union(*(route.declared for route in routes))
        """The labels that its sources declare."""
        self.diverting = DivertingOptions.of(connection)

    def __repr__(self) -> str:
        return f"<OpenConnection {self.connection_id}, {len(self.targets)} targets>"


class ConnectionComponent:
    """A component that keeps something for each open connection. By default nothing happens.

    `job` is the name of its periodic work; empty: it has none.
    """

    job = ""

    def is_prepared(self, connection: Connection) -> bool:  # noqa: ARG002
        """Return whether a connection may be opened without `prepare`."""
        return True

    async def prepare(self, connection: Connection) -> None:
        """Store what a connection needs before it opens. Waits for the store."""

    def opened(self, opened: OpenConnection) -> None:
        """Begin to serve a connection."""

    def linked(self, connection_id: str) -> None:
        """Process the first link of a connection that had none."""

    def reader(self, connection_id: str, address: str, reader_status: ReaderStatus) -> None:
        """Process what a link reports about the reader at a reply address."""

    def forget_names(self, connection_id: str, prefix: str) -> None:
        """Forget the deliveries whose names have a prefix: the broker does not deliver them again."""

    async def part(self, connection_id: str) -> None:
        """Say goodbye to clients, and wait for their replies, which still arrive.

        The caller limits the time.
        """

    async def stop(self, connection_id: str) -> None:
        """Send nothing more, and wait for the confirms of what was sent; the caller limits the time."""

    def closed(self, connection_id: str) -> None:
        """End what waits for a connection that is closed, for now or for ever."""

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        """Delete what is kept for the connections of which this is false."""

    def conditions(self, connection_id: str) -> Iterable[tuple[int | None, str]]:  # noqa: ARG002
        """Return the conditions for the status of a connection; those of a target with its index."""
        return ()

    def sweep(self) -> None:
        """Do periodic work; to be called about once a second."""

    async def close(self) -> None:
        """Store what resumes at the next start of the service."""
