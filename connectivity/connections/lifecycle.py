"""The states of one running connection, and how long to wait before the next try. No clock, no task.

    state        open         connected   lost      retry due    close     closed
    CLOSED       CONNECTING                                      CLOSED    CLOSED
    CONNECTING   CONNECTING   OPEN        WAITING                CLOSING   CLOSED
    OPEN         OPEN                     WAITING                CLOSING   CLOSED
    WAITING      CONNECTING                         CONNECTING   CLOSED    CLOSED
    CLOSING                               CLOSING                CLOSING   CLOSED

An empty cell is an internal error and raises. The status that operators see is computed from the state and the last
error, and stored nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from connectivity.errors import ConnectionRefused, Detail, LinkError


class ConnectionState(Enum):
    CLOSED = "closed"
    CONNECTING = "connecting"
    OPEN = "open"
    WAITING = "waiting"
    CLOSING = "closing"


class LifecycleEvent(Enum):
    OPEN = "open"
    CONNECTED = "connected"
    LOST = "lost"
    RETRY_DUE = "retry due"
    CLOSE = "close"
    CLOSED = "closed"


TABLE: dict[ConnectionState, dict[LifecycleEvent, ConnectionState]] = {
    ConnectionState.CLOSED: {
        LifecycleEvent.OPEN: ConnectionState.CONNECTING,
        LifecycleEvent.CLOSE: ConnectionState.CLOSED,
        LifecycleEvent.CLOSED: ConnectionState.CLOSED,
    },
    ConnectionState.CONNECTING: {
        LifecycleEvent.OPEN: ConnectionState.CONNECTING,
        LifecycleEvent.CONNECTED: ConnectionState.OPEN,
        LifecycleEvent.LOST: ConnectionState.WAITING,
        LifecycleEvent.CLOSE: ConnectionState.CLOSING,
        LifecycleEvent.CLOSED: ConnectionState.CLOSED,
    },
    ConnectionState.OPEN: {
        LifecycleEvent.OPEN: ConnectionState.OPEN,
        LifecycleEvent.LOST: ConnectionState.WAITING,
        LifecycleEvent.CLOSE: ConnectionState.CLOSING,
        LifecycleEvent.CLOSED: ConnectionState.CLOSED,
    },
    ConnectionState.WAITING: {
        LifecycleEvent.OPEN: ConnectionState.CONNECTING,
        LifecycleEvent.RETRY_DUE: ConnectionState.CONNECTING,
        LifecycleEvent.CLOSE: ConnectionState.CLOSED,
        LifecycleEvent.CLOSED: ConnectionState.CLOSED,
    },
    ConnectionState.CLOSING: {
        LifecycleEvent.LOST: ConnectionState.CLOSING,
        LifecycleEvent.CLOSE: ConnectionState.CLOSING,
        LifecycleEvent.CLOSED: ConnectionState.CLOSED,
    },
}


class Status(str, Enum):
    """The status that operators see."""

    OPEN = "open"
    CLOSED = "closed"
    FAILED = "failed"
    MISCONFIGURED = "misconfigured"
    UNKNOWN = "unknown"


def overall(statuses: Sequence[Status]) -> Status:
    """The status of a connection from those of its clients: open if all are, otherwise that of the worst."""
    for status in (Status.FAILED, Status.MISCONFIGURED, Status.UNKNOWN):
        if status in statuses:
            return status
    return Status.OPEN if Status.OPEN in statuses else Status.CLOSED


def status_of(error: LinkError) -> Status:
    """Return the status for an error: misconfigured if the `uri` or the permissions explain it."""
    is_slip = isinstance(error, ConnectionRefused) or error.detail in _PERHAPS_A_SLIP
    return Status.MISCONFIGURED if is_slip else Status.FAILED


_PERHAPS_A_SLIP = frozenset({Detail.UNKNOWN_HOST, Detail.REFUSED})
"""How a wrong host or port appears. A starting broker looks the same, so it is retried as usual."""


class Lifecycle:
    """The state of one connection, its last error, and the attempts since a link was last stable."""

    __slots__ = ("error", "state", "tries")

    def __init__(self) -> None:
        self.state = ConnectionState.CLOSED
        self.tries = 0
        self.error: LinkError | None = None

    def step(self, happened: LifecycleEvent, error: LinkError | None = None, *, was_steady: bool = False) -> None:
        """Process one event. Raises ValueError for an event that this state does not accept.

        LOST comes with the error and whether the link was stable. A link that breaks again and again right after connecting
        is treated like a failed attempt: its pauses grow.
        """
        following = TABLE[self.state].get(happened)
        if following is None:
            raise ValueError(f"found the event {happened.value} in state {self.state.value}, which does not accept it")
        if happened is LifecycleEvent.CONNECTED:
            self.error = None
        elif happened is LifecycleEvent.LOST:
            self.tries, self.error = 1 if was_steady else self.tries + 1, error
        self.state = following

    @property
    def status(self) -> Status:
        """Computed from state and last error."""
        if self.state is ConnectionState.OPEN:
            return Status.OPEN
        if self.state in (ConnectionState.CLOSED, ConnectionState.CLOSING):
            return Status.CLOSED
        return Status.UNKNOWN if self.error is None else status_of(self.error)


def back_off(tries: int, error: LinkError | None, *, shortest: float, longest: float, jitter: float) -> float:
    """Return the seconds before the next attempt: doubling, bounded, reduced by up to half by `jitter`.

    `jitter` is in [0, 1). A refusal that only an operator can fix is retried with the longest pause.
    """
    pause = longest if isinstance(error, ConnectionRefused) else min(longest, shortest * 2.0 ** min(tries - 1, 30))
    return pause * (1 - jitter / 2)
