"""Rebuilds the table `latest` from the lake's events, the journal's states, and the search index.

A pipeline process rebuilds the table; the rest happens here while no service runs: this process holds the data folder's
lock. An interrupted rebuild is repeated. A running service can rebuild the index alone.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from connectivity.config.settings import Settings
from connectivity.maintenance.index_builder import request_rebuild
from connectivity.maintenance.pipeline_process import command, environment, parse_event
from connectivity.store.folder_lock import DataFolderLocked, lock_folder
from spark_store.errors import LakeUnfit, SchemaTooNew, StoreError
from spark_store.journal.journal import Journal
from spark_store.journal.reader import expect_journal
from spark_store.lake.tables import EVENTS, Lake
from spark_store.maintenance.rebuild import rebuild_index, rebuild_journal

EXIT_FAILED, EXIT_BUSY, EXIT_UNFIT = 1, 3, 5
"""Exit code, as the pipeline's own (see `spark_store.pipeline.__main__`)."""


class RebuildPart(str, Enum):
    """The part to rebuild."""

    LATEST = "latest"
    JOURNAL = "journal"
    INDEX = "index"


@dataclass(slots=True)
class RebuildOutcome:
    """The exit code, and the number of changes by part. `reason` says why it failed."""

    exit_code: int = 0
    reason: str | None = None
    changed: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def rebuild(
    settings: Settings, only: RebuildPart | None = None, tell: Callable[[str], None] = lambda _: None
) -> RebuildOutcome:
    """Rebuild all parts, or one of them. `tell` receives progress.

    Raises SettingsError if the data folder cannot be written.
    """
    outcome = RebuildOutcome()
    lake = Lake(settings.data_dir)
    try:
        # The lock would create the folder.
        expect_journal(lake.journal)
        with contextlib.nullcontext() if only is RebuildPart.LATEST else lock_folder(Path(settings.data_dir)):
            if only is None:
                # The pipeline reads the journal's erasures, and cannot migrate an older file.
                Journal.open(lake.journal).close()
            if only is RebuildPart.LATEST or (only is None and lake.has(EVENTS)):
                _rebuild_latest(settings, outcome)
            if only is RebuildPart.INDEX:
                outcome.changed[only.value] = {"indexed": rebuild_index(lake)}
            elif only is not RebuildPart.LATEST and outcome.exit_code == 0:
                made = rebuild_journal(lake, say=lambda checked: tell(f"journal: {checked} entities"))
                outcome.changed[RebuildPart.JOURNAL.value] = made._asdict()
    except DataFolderLocked as error:
        if only is RebuildPart.INDEX:
            return _request_index_rebuild(settings, outcome)
        outcome.exit_code = EXIT_BUSY
        outcome.reason = f"stop the service before rebuilding the journal: {error}"
    except StoreError as error:
        outcome.exit_code = EXIT_UNFIT if isinstance(error, LakeUnfit | SchemaTooNew) else EXIT_FAILED
        outcome.reason = str(error)
    return outcome


def _request_index_rebuild(settings: Settings, outcome: RebuildOutcome) -> RebuildOutcome:
    """Have a running service build the index again."""
    try:
        request_rebuild(Path(settings.data_dir))
        outcome.changed[RebuildPart.INDEX.value] = {
            "requested": "from the running service; its log reports when the index is built"
        }
    except OSError as error:
        outcome.exit_code, outcome.reason = EXIT_FAILED, f"{settings.data_dir}: {error.strerror}"
    return outcome


def _rebuild_latest(settings: Settings, outcome: RebuildOutcome) -> None:
    last = "the process printed no result"
    with subprocess.Popen(
        command(settings, "rebuild", "--with-parent"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            fields = parse_event(line) or {}
            match fields.pop("event", None):
                case "rebuilt":
                    outcome.changed[RebuildPart.LATEST.value] = fields
                case "failed":
                    outcome.reason = str(fields["reason"])
                case None if line.strip():
                    last = line.strip()
        outcome.exit_code = process.wait()
    if outcome.exit_code != 0 and outcome.reason is None:
        outcome.reason = f"the pipeline's process ended with {outcome.exit_code}: {last}"
    # Killed by a signal.
    outcome.exit_code = EXIT_FAILED if outcome.exit_code < 0 else outcome.exit_code
