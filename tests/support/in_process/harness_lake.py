"""The lake of a harness, into which a test moves the events of the harness's journal."""

from __future__ import annotations

from pathlib import Path

from spark_store.lake.history_reader import LakeHistory
from spark_store.lake.tables import Lake
from tests.support.in_process.service import ConnectionHarness
from tests.support.journal_entries import LATER
from tests.support.lake.tables import append_events
from tests.support.temporary_journal import events_after


class HarnessLake:
    """A lake that has everything that the journal has trimmed. `cold` opens it, for a harness."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder)
        self.moved = 0
        self._opened = LakeHistory(self.lake)

    def cold(self) -> LakeHistory:
        return self._opened

    async def trim(self, harness: ConnectionHarness, keep: int) -> None:
        """The journal keeps the newest events alone, and nothing is known of the lake yet."""
        followed = events_after(harness.journal, self.moved, 1000, 1 << 30)
        append_events(self.lake, [each[:2] for each in followed])
        self.moved = followed[-1].seq
        assert await harness.store.commits.trim(self.moved - keep, LATER) > 0
        harness.store.retained_history.forget()
