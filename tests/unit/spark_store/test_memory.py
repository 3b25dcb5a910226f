"""The journal on dictionaries and lists."""

from __future__ import annotations

from pathlib import Path

from spark_store.memory import MemoryJournal
from tests.contract.journal import JournalBehaviour
from tests.support.journal_entries import NanoClock


class TestMemoryJournal(JournalBehaviour):
    def make(self, _folder: Path, clock: NanoClock) -> MemoryJournal:
        return MemoryJournal(clock)
