"""The pipeline as a process: `python -m spark_store.pipeline ACTION --data-dir FOLDER`.

`run` follows the journal until SIGTERM or SIGINT, finishes its batch, and answers Spark queries meanwhile. `optimize`
compacts the tables, `retention` deletes expired events (or shows them), `rebuild` rebuilds `latest` from `events`. Without
Spark, `verify` compares the tables with the journal, and `install` fetches Delta's jars. Each line on standard output is a
JSON object with `event`; output of Java goes to standard error. With `--with-parent` the process ends with its standard
input.

Exit codes: 0 done, or stopped; 1 failed, may succeed later (with `verify`: differences); 2 invalid arguments; 3 another
pipeline writes the lake; 4 Spark cannot run here; 5 lake and journal do not match.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from spark_store.errors import (
    INSTALL_EXTRA,
    LakeBusy,
    LakeUnfit,
    SchemaTooNew,
    SparkMissing,
    StoreError,
    translate_system_error,
)
from spark_store.journal.reader import expect_journal
from spark_store.lake import durability
from spark_store.lake.tables import EVENTS, Lake
from spark_store.lake.watermark import Failure, note_failure
from spark_store.pipeline.settings import PipelineSettings, decode_settings
from spark_store.records import EXPECTED_MASTER, LOCAL_MASTER, now_text

if TYPE_CHECKING:
    from spark_store.pipeline.tables import LakeWriter


EXIT_FAILED, EXIT_UNUSABLE, EXIT_BUSY, EXIT_MISSING, EXIT_UNFIT = 1, 2, 3, 4, 5
NICE = 15
"""The niceness of the pipeline: clients wait for the service, and not for the lake."""

_LOCK_SECONDS, _MANUAL_LOCK_SECONDS = 60.0, 5.0
"""How long another pipeline may take to end: for the service's own, and for manual commands."""

_ORPHAN_SECONDS = 60.0
"""How long a process whose parent is gone may take to finish its batch."""


def say(event: str, **fields: Any) -> None:
    """Write an event to standard output."""
    with contextlib.suppress(BrokenPipeError):
        # In one write: threads report at the same time.
        print(json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n", end="", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one action; the exit code."""
    given = _parser().parse_args(arguments)
    try:
        given.settings = decode_settings(*given.settings)
    except msgspec.MsgspecError as error:
        say("failed", reason=f"--settings: {error}", kind="Unusable")
        return EXIT_UNUSABLE
    if LOCAL_MASTER.fullmatch(master := given.settings.master) is None:
        say("failed", reason=f"spark.master: found {master}, expected {EXPECTED_MASTER}", kind="Unusable")
        return EXIT_UNUSABLE
    if given.with_parent and given.action != "run":
        _watch_parent(threading.Event())
    try:
        return _ACTIONS[given.action](given)
    except ImportError as error:
        extra = "lake" if given.action == "verify" else "spark"
        reason = f"expected the extra '{extra}', found {error}; {INSTALL_EXTRA.format(extra)}"
        say("failed", reason=reason, kind="SparkMissing")
        return EXIT_MISSING
    except (StoreError, OSError) as error:
        known = (
            error if isinstance(error, StoreError) else translate_system_error(error.filename or given.data_dir, error)
        )
        say("failed", reason=str(known), kind=type(known).__name__)
        if given.action == "run" and not isinstance(known, LakeBusy):
            # Another pipeline runs then, and reports its own failure.
            note_failure(Lake(given.data_dir).failure, Failure(now_text(), _exit_code(known), str(known)))
        return _exit_code(known)


def _exit_code(error: StoreError) -> int:
    codes = {LakeBusy: EXIT_BUSY, SparkMissing: EXIT_MISSING, LakeUnfit: EXIT_UNFIT, SchemaTooNew: EXIT_UNFIT}
    return codes.get(type(error), EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_store.pipeline", description="Move the journal into the lake."
    )
    parser.add_argument("action", choices=sorted(_ACTIONS))
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of journal and lake")
    parser.add_argument(
        "--settings", action="append", default=[], metavar="JSON", help="the settings; of several, later ones override"
    )
    parser.add_argument(
        "--preview", action="store_true", help="with `retention`: show what would be deleted, change nothing"
    )
    parser.add_argument("--with-parent", action="store_true", help="end when standard input is closed")
    return parser


def stop_at_signals(stopping: threading.Event) -> None:
    """Set `stopping` at SIGTERM and at SIGINT.

    A thread sets it. A handler interrupts the main thread, perhaps while it holds the event's lock in a wait, and would
    then wait for that lock for ever. `SimpleQueue.put` may be called in a handler.
    """
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: arrived.put(number))

    def wait() -> None:
        arrived.get()
        stopping.set()

    threading.Thread(target=wait, daemon=True).start()


def _run(given: argparse.Namespace) -> int:
    from spark_store.lake.check import expect_lake
    from spark_store.lake.connect_address import local_address, publish_address
    from spark_store.pipeline.loop import PipelineLoop
    from spark_store.pipeline.query_jobs import abandoned_jobs_ended
    from spark_store.pipeline.session import connect_port, prioritize

    # Without Spark, which takes long to start, since it may be tried for hours.
    expect_lake(Lake(given.data_dir))
    stopping = threading.Event()
    stop_at_signals(stopping)
    if given.with_parent:
        _watch_parent(stopping)
    settings: PipelineSettings = given.settings
    token = secrets.token_urlsafe(32) if settings.answers_queries and not settings.once else None
    with _target(given, stopping, token=token) as target, contextlib.ExitStack() as serving:
        prioritize(target.spark)
        if token is not None:
            port = connect_port(target.spark)
            serving.enter_context(abandoned_jobs_ended(target.spark))
            serving.enter_context(publish_address(target.lake.connect, local_address(port, token)))
            say("spark queries", port=port)
        if not stopping.is_set():
            PipelineLoop(target, say, settings, stopping).run()
    say("stopped")
    return 0


def _optimize(given: argparse.Namespace) -> int:
    from spark_store.pipeline.loop import PipelineLoop

    with _target(given) as target:
        done = PipelineLoop(target, say, given.settings, threading.Event()).carry_out("optimize", "vacuum")
    say("optimized", tables={name: asdict(size) for name, size in done.tables.items()})
    return 0


def _retention(given: argparse.Namespace) -> int:
    from spark_store.pipeline import retention
    from spark_store.pipeline.loop import PipelineLoop

    rules = given.settings.retention
    lake = Lake(given.data_dir)
    if given.preview and not lake.has(EVENTS):
        expect_journal(lake.journal)
        say("preview", namespaces=[])
        return 0
    with _target(given, is_writing=not given.preview) as target:
        if given.preview:
            say("preview", namespaces=retention.preview(target, rules, datetime.now(UTC)))
        elif rules.is_forever:
            say("expired", events=0)
        else:
            PipelineLoop(target, say, given.settings, threading.Event()).carry_out("retention")
    return 0


def _rebuild(given: argparse.Namespace) -> int:
    from spark_store.pipeline.rebuild import rebuild_latest

    with _target(given) as target:
        rebuilt = rebuild_latest(target)
    say("rebuilt", **asdict(rebuilt))
    return 0


def _verify(given: argparse.Namespace) -> int:
    from spark_store.maintenance.verify import verify

    retention = given.settings.retention
    decision = verify(
        Lake(given.data_dir),
        lambda entry, newest: retention.has_expired(entry, newest, datetime.now(UTC)),
        lambda it: say("compared", entities=it.compared, total=it.total, differences=it.count),
    )
    for difference in decision.differences:
        say("difference", **asdict(difference))
    say(
        "verified",
        first=decision.first,
        last=decision.last,
        entities=decision.entities,
        differences=decision.count,
        shown=len(decision.differences),
        waiting=decision.waiting,
        erasures_pending=decision.pending,
        indexed=decision.indexed,
        unindexed=decision.unindexed,
    )
    return EXIT_FAILED if decision.count else 0


def _install(given: argparse.Namespace) -> int:
    from spark_store.pipeline.delta_jars import install_jars, jars_folder

    folder = jars_folder(given.settings)
    say("installed", fetched=install_jars(folder, given.settings.mirror), folder=str(folder))
    return 0


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "install": _install,
    "run": _run,
    "optimize": _optimize,
    "retention": _retention,
    "rebuild": _rebuild,
    "verify": _verify,
}


@contextlib.contextmanager
def _target(
    given: argparse.Namespace,
    stopping: threading.Event | None = None,
    *,
    is_writing: bool = True,
    token: str | None = None,
) -> Iterator[LakeWriter]:
    """Return a session and the lake, locked for writing."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from spark_store.pipeline.loop import translate_error
    from spark_store.pipeline.session import (
        lake_lock,
        remove_unused_folders,
        scratch_folder,
        start_session,
        wait_for_lock,
    )
    from spark_store.pipeline.tables import LakeWriter

    lake = Lake(given.data_dir)
    begun = time.monotonic()
    is_manual = given.action != "run"
    settings: PipelineSettings = given.settings
    seconds = _MANUAL_LOCK_SECONDS if is_manual else _LOCK_SECONDS
    if is_manual and not lake.has(EVENTS):
        # Neither exists: probably a wrong folder, so create nothing in it.
        expect_journal(lake.journal)
    if is_writing and is_manual:
        # Check before starting Spark, which takes long.
        wait_for_lock(lake, seconds)
    with scratch_folder(lake) as scratch:
        spark = start_session(settings, token, scratch)
        say("spark", version=spark.version, master=settings.master, seconds=round(time.monotonic() - begun, 3))
        try:
            # A pipeline that was killed leaves a Java process which needs a moment to notice: that one is waited for.
            with lake_lock(spark, lake, seconds, stopping) if is_writing else contextlib.nullcontext():
                if is_writing:
                    remove_unused_folders(lake)
                    if repaired := durability.repair(lake):
                        say("log repaired", commits=[str(commit.relative_to(lake.folder)) for commit in repaired])
                yield LakeWriter.of(spark, given.data_dir)
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise translate_error(error) from error
        finally:
            # A Java process that was killed cannot be asked to stop.
            with contextlib.suppress(Exception):
                spark.stop()


def _watch_parent(stopping: threading.Event) -> None:
    """Standard input ends when the process that started this one does, however it ends."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(sys.stdin.fileno(), 1024):
                pass
        stopping.set()
        time.sleep(_ORPHAN_SECONDS)
        # Long over: the lake can bear it, and an orphan would be in the way of the next pipeline.
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    os.nice(NICE)
    sys.exit(main())
