"""How long what is stored will be there, as far as time says it: for protocols that tell their clients.

What is kept is said by `lake.retention`, by namespace. Without a lake everything is kept. Where the newest revisions are
kept besides, however old they are, an event that is past its time may still be one of those; no time is told of it then.
"""

from __future__ import annotations

from connectivity.settings import Retention, SparkMode
from mappings.signals import Event
from mappings.streamr.instants import milliseconds
from mappings.streamr.messages import time_to_live


class Lifetimes:
    """What is left to events."""

    def __init__(self, retention: Retention, mode: SparkMode) -> None:
        self._retention = retention
        self.is_forever = mode is SparkMode.OFF or all(kept.days is None for kept in retention.rules.values())
        """Whether no time ends anything."""

    def __repr__(self) -> str:
        return "<Lifetimes: forever>" if self.is_forever else f"<Lifetimes by {', '.join(self._retention.rules)}>"

    def left(self, event: Event, now: int) -> int:
        """Whole seconds until an event's time is over, at least one; 0 where no time ends it. `now` in milliseconds."""
        if self.is_forever:
            return 0
        kept = self._retention.of(event.entity.namespace)
        if kept.days is None:
            return 0
        stored, seconds = milliseconds(event.timestamp), kept.days.total_seconds()
        if kept.revisions is not None and now >= stored + 1000 * seconds:
            return 0
        return time_to_live(stored, seconds, now)


FOREVER = Lifetimes(Retention(), SparkMode.OFF)
