"""Decides when an address has no reader, from the broker's reports (Streamr protocol, sessions).

Some brokers report that nobody received a message. A single one may mean a client that is reconnecting, so the absence must
last: for a number of messages in a row, and for some time.
"""

from __future__ import annotations

MESSAGES = 3
SECONDS = 30.0


class AbsenceDetector:
    """Counts messages for one address without receiver, since one was received last."""

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<AbsenceDetector {self._count}, since {self._since}>"

    def note(self, now: float) -> bool:
        """Count a message without receiver; return whether the reader is gone. `now` is in seconds."""
        if not self._count:
            self._since = now
        self._count += 1
        return self._count >= MESSAGES and now - self._since >= SECONDS

    def clear(self) -> None:
        """Note a received message."""
        self._count = 0
