"""`connectivity history export`: events, as a Parquet file.

Exit codes: 0 written; 1 there is no such entity, or failed, and may go well the next time (time is up, the pipeline ended
amid it, the disk is full, the journal cannot be read); 2 arguments, settings, limits or a file that cannot be used; 4 no
pipeline answers wide queries; 130 cancelled.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from connectivity.cli.given import SettingsFile, loaded_settings
from connectivity.cli.output import complain, counted, print_json

if TYPE_CHECKING:
    from connectivity.export import HistoryExport

EXITS = (
    "Exit codes: 0 written; 1 there is no such entity, or failed, and may go well the next time; 2 arguments, settings, "
    "limits or a file that cannot be used; 4 no pipeline answers wide queries; 130 cancelled."
)
A_YEAR = 31_536_000.0
_LOOK_SECONDS = 0.2


def export(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="The file to write.")],
    what: Annotated[
        str | None,
        typer.Argument(metavar="[ENTITY-OR-FILTER]", help="An entity's id, or a filter (RQL); nothing: everything."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="REVISION|TIME", help="The first revision, or the earliest time.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="REVISION|TIME", help="The last revision, or the time before which events lie."),
    ] = None,
    entity_type: Annotated[str | None, typer.Option("--type", help="`thing`, `policy` or `stream` alone.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Entities of this namespace alone.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=A_YEAR, metavar="SECONDS", help="How long it may take.")
    ] = 3600.0,
    max_rows: Annotated[int | None, typer.Option(min=0, metavar="ROWS", help="How many events it may find.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
    settings: SettingsFile = None,
) -> None:
    """Write events, ordered by entity and revision, into a Parquet file, complete up to now."""
    loaded = loaded_settings(settings)
    from connectivity.export import ExportFailed, HistoryExport, Wanted

    try:
        wanted = Wanted(what, entity_type, namespace, begin, end)
        written = _run(HistoryExport(loaded, wanted, seconds=timeout, rows=max_rows), out, force=force)
    except ExportFailed as error:
        complain(str(error))
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json(written)
    else:
        found = counted(written["rows"], "event") if written["rows"] else "nothing found, no events"
        typer.echo(f"{written['file']}: {found}, {counted(written['bytes'], 'byte')}")


def _run(work: HistoryExport, out: Path, *, force: bool) -> dict[str, Any]:
    """In a thread of its own, so that Ctrl-C is heard at once, whatever a library waits for. Raises ExportFailed."""
    written: list[dict[str, Any]] = []
    failures: list[Exception] = []
    shown = _shown if sys.stderr.isatty() else _silent

    def run() -> None:
        try:
            written.append(work.run(out, force=force, progress=shown))
        except Exception as error:
            failures.append(error)

    before = {number: signal.signal(number, lambda *_: work.cancel()) for number in (signal.SIGINT, signal.SIGTERM)}
    worker = threading.Thread(target=run, name="export", daemon=True)
    try:
        worker.start()
        while worker.is_alive():
            worker.join(_LOOK_SECONDS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if shown is _shown:
            typer.echo("\r\033[K", nl=False, err=True)
    if failures:
        raise failures[0]
    return written[0]


def _shown(rows: int) -> None:
    typer.echo(f"\r{rows:,} events", nl=False, err=True)


def _silent(rows: int) -> None:
    """Nobody looks."""
