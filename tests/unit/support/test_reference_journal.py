"""The journal on dictionaries and lists."""

from __future__ import annotations

from pathlib import Path

from tests.contract.journal import JournalBehavior
from tests.support.journal_entries import NanoClock
from tests.support.reference_journal import MemoryJournal


class TestMemoryJournal(JournalBehavior):
    def make(self, _folder: Path, clock: NanoClock) -> MemoryJournal:
        return MemoryJournal(clock)
