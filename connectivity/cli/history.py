"""`connectivity history …`: erasure and export of the history of entities.

`erase` calls the service's HTTP API if a service runs on the data folder; else it erases the journal itself.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from connectivity.cli.command_group import CommandGroup
from connectivity.cli.options import AsJson, ConnectionOptions, SettingsFile, TokenFile, Url, loaded_settings, user
from connectivity.cli.output import (
    pluralize,
    print_error,
    print_fields,
    print_json,
    print_table,
)
from mappings.texts import escape_control_characters

if TYPE_CHECKING:
    from connectivity.maintenance.export import HistoryExport
    from mappings.ids import EntityId

A_YEAR = 31_536_000.0
_POLL_SECONDS = 0.2


def export(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.parquet", help="The file to write.")],
    what: Annotated[
        str | None, typer.Argument(metavar="ENTITY-OR-FILTER", help="Entity ID or RQL filter. Default: everything.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="REVISION|TIME", help="The first revision, or the earliest time.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="REVISION|TIME", help="The last revision, or the time that all events precede."),
    ] = None,
    entity_type: Annotated[str | None, typer.Option("--type", help="Only `thing`, `policy` or `stream`.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only entities of this namespace.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=A_YEAR, metavar="SECONDS", help="How long the export may take.")
    ] = 3600.0,
    max_rows: Annotated[int | None, typer.Option(min=0, metavar="ROWS", help="Maximum number of events.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    settings: SettingsFile = None,
) -> None:
    """Write events, ordered by entity and revision, into a Parquet file, complete up to now."""
    loaded = loaded_settings(settings)
    from connectivity.errors import CommandFailed
    from connectivity.maintenance.export import ExportRequest, HistoryExport

    try:
        wanted = ExportRequest(what, entity_type, namespace, begin, end)
        written = _run(HistoryExport(loaded, wanted, seconds=timeout, rows=max_rows), out, force=force)
    except CommandFailed as error:
        print_error(str(error))
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json(written)
    else:
        found = pluralize(written["rows"], "event") if written["rows"] else "no events"
        typer.echo(f"{written['file']}: {found}, {pluralize(written['bytes'], 'byte')}")


def _run(work: HistoryExport, out: Path, *, force: bool) -> dict[str, Any]:
    """Run in a thread, so that Ctrl-C works at once whatever a library waits for. Raises CommandFailed."""
    written: list[dict[str, Any]] = []
    failures: list[Exception] = []
    shown = _print_rows if sys.stderr.isatty() else _silent

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
            worker.join(_POLL_SECONDS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if shown is _print_rows:
            typer.echo("\r\033[K", nl=False, err=True)
    if failures:
        raise failures[0]
    return written[0]


def _print_rows(rows: int) -> None:
    typer.echo(f"\r{rows:,} events", nl=False, err=True)


def _silent(rows: int) -> None:
    """Show no progress."""


app = CommandGroup(help="Export the history of entities, erase it, and list the erasures.")
app.command()(export)


@app.command()
def erase(
    entity: Annotated[str, typer.Argument(help="Entity ID, such as acme.site:lamp-7, or tank-9/0 for a stream.")],
    type: Annotated[str, typer.Option(help="`thing`, `policy` or `stream`.")] = "thing",
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the erasure, which cannot be undone.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase all data of one entity from journal and lake, permanently."""
    if not yes:
        print_error(f"{type} {entity}: its whole history would be erased permanently; add --yes to confirm")
        raise typer.Exit(2)
    loaded = loaded_settings(settings)
    from connectivity.cli.http_client import RequestFailed
    from connectivity.errors import SettingsError
    from connectivity.maintenance import erasure
    from connectivity.store.folder_lock import DataFolderLocked

    try:
        named = erasure.entity_of(entity, type)
        try:
            record = erasure.erase_offline(Path(loaded.data_dir), named, user())
        except DataFolderLocked:
            record = _query_service(
                ConnectionOptions(url, token_file, settings), {"entity": entity, "type": type, "by": user()}
            )
    except (erasure.UnknownEntity, erasure.ErasureUnavailable, SettingsError) as error:
        print_error(str(error))
        raise typer.Exit(2 if isinstance(error, erasure.InvalidEntity) else 1) from None
    except RequestFailed as error:
        print_error(f"a service uses the data folder: {error}")
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json(record)
    else:
        print_fields(record)
    # It is done, whether this can be read or not.
    with contextlib.suppress(erasure.ErasureUnavailable):
        for remark in _remarks(Path(loaded.data_dir), named, record):
            typer.echo(escape_control_characters(remark), err=as_json)


def _remarks(data_dir: Path, entity: EntityId, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes about what an erasure leaves. Raises ErasureUnavailable."""
    from connectivity.maintenance import erasure

    if (earlier := erasure.previous_erasure(data_dir, record)) is not None:
        number, at = earlier["id"], earlier["requested_at"]
        yield (
            f"{record['entity']} was erased before, as number {number} at {at}: the erasure is repeated and covers "
            "later data"
        )
    if erasure.has_policy(data_dir, entity):
        yield (
            "its policy with the same ID remains, with the subjects that it names; unless other things need it, erase it, "
            f"too: connectivity history erase {shlex.quote(entity.id)} --type policy"
        )


@app.command()
def erasures(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """List the erasures: by whom, when requested, and when journal and lake were done."""
    loaded = loaded_settings(settings)
    from connectivity.maintenance import erasure

    try:
        found = erasure.read_records(Path(loaded.data_dir))
    except erasure.ErasureUnavailable as error:
        print_error(str(error))
        raise typer.Exit(1) from None
    if as_json:
        print_json(found)
    elif found:
        print_table(found)
    else:
        typer.echo("no erasures")


def _query_service(way: ConnectionOptions, wanted: dict[str, str]) -> dict[str, Any]:
    """Return the response of the running service. Raises RequestFailed."""
    record: dict[str, Any] = way.service().ask("POST", "erasures", body=wanted).document
    return record
