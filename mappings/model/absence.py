"""When nobody reads at an address any more, for all that a broker says of it (Streamr protocol, sessions).

Some brokers say of a message that nobody received it. Once may be a client that has just lost its link and is about to come
back, so the silence has to last: over so many messages in a row, and for so long.
"""

from __future__ import annotations

MESSAGES = 3
SECONDS = 30.0


class AbsenceDetector:
    """The messages for one address that nobody received, since one was received last."""

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<Unheard {self._count}, since {self._since}>"

    def note(self, now: float) -> bool:
        """One more was received by nobody; whether nobody is there any more. `now` is in seconds."""
        if not self._count:
            self._since = now
        self._count += 1
        return self._count >= MESSAGES and now - self._since >= SECONDS

    def clear(self) -> None:
        """One was received."""
        self._count = 0
