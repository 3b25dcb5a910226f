"""`connectivity history …`: erasure and export of the history of entities.

With `--url` or CONNECTIVITY_URL the commands call that service, and use no local file. Otherwise `erase` calls the service
that runs on the data folder; if none runs, it erases the entity from the journal itself.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from connectivity.cli.command_group import CommandGroup
from connectivity.cli.http_client import RequestFailed
from connectivity.cli.options import (
    A_YEAR,
    AsJson,
    ConnectionOptions,
    SettingsFile,
    TokenFile,
    loaded_settings,
    service_errors,
    user,
)
from connectivity.cli.output import exit_on, pluralize, print_error, print_fields, print_json, print_list
from connectivity.errors import SettingsError
from connectivity.stop_signals import stop_signals
from mappings.ids import EntityType
from mappings.texts import escape_control_characters

if TYPE_CHECKING:
    from connectivity.cli.http_client import ServiceClient
    from connectivity.maintenance.export import HistoryExport
    from mappings.ids import EntityId

_POLL_SECONDS = 0.2


def export(
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The file to write: `.parquet`, `.csv` or `.jsonl`.")
    ],
    what: Annotated[
        str | None, typer.Argument(metavar="ENTITY-OR-FILTER", help="Entity ID or RQL filter. Default: everything.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="REVISION|TIME", help="The first revision, or the earliest time.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="REVISION|TIME",
            help="The last revision, or a time: the export has only events before this time.",
        ),
    ] = None,
    entity_type: Annotated[
        str | None, typer.Option("--type", help="Export only entities of this type: `thing`, `policy` or `stream`.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Export only entities of this namespace.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=A_YEAR, metavar="SECONDS", help="Maximum duration of the export.")
    ] = 3600.0,
    max_rows: Annotated[int | None, typer.Option(min=0, metavar="ROWS", help="Maximum number of events.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    settings: SettingsFile = None,
) -> None:
    """Write the events up to now into a file, ordered by entity and revision."""
    loaded = loaded_settings(settings)
    from connectivity.errors import CommandFailed
    from connectivity.maintenance.export import ExportRequest, HistoryExport

    with exit_on(CommandFailed):
        wanted = ExportRequest(what, entity_type, namespace, begin, end)
        written = _run(HistoryExport(loaded, wanted, seconds=timeout, rows=max_rows), out, force=force)
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

    before = {number: signal.signal(number, lambda *_: work.cancel()) for number in stop_signals()}
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


_Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the service. Default: the environment variable CONNECTIVITY_URL. Without an address, the command "
        "uses the data folder of the settings.",
    ),
]


@app.command()
def erase(
    entity: Annotated[
        str, typer.Argument(metavar="ENTITY", help="Entity ID, such as acme.site:lamp-7, or tank-9/0 for a stream.")
    ],
    type: Annotated[str, typer.Option(help="`thing`, `policy` or `stream`.")] = "thing",
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the erasure, which cannot be undone.")] = False,
    url: _Url = None,
    token_file: TokenFile = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase all data of one entity from journal and lake, permanently.

    With --url or CONNECTIVITY_URL, the service at that address erases the data. Otherwise the command erases the data in
    the data folder that the settings name; if a service uses that folder, the service erases the data.
    """
    if not yes:
        print_error(f"{type} {entity}: this command erases the whole history permanently; add --yes to confirm")
        raise typer.Exit(2)
    from connectivity.maintenance import erasure

    with exit_on(erasure.InvalidEntity, code=2):
        named = erasure.entity_of(entity, type)
    way = ConnectionOptions(url, token_file, settings)
    if way.service_url is not None:
        _erase_at_service(way, named, as_json=as_json)
    else:
        _erase_in_folder(way, named, as_json=as_json)


def _erase_at_service(way: ConnectionOptions, entity: EntityId, *, as_json: bool) -> None:
    """Erase at the named service, which may run elsewhere: no local file is used."""
    with service_errors():
        service = way.service()
        record = _request_erasure(service, entity)
    _print_record(record, as_json=as_json)
    # It is done, whether this can be read or not.
    with contextlib.suppress(RequestFailed):
        _print_remarks(_note_of_earlier(service.items("erasures"), record), as_json=as_json)
    if entity.type is EntityType.THING:
        _print_remarks([f"its policy with the same ID, if there is one, {_how_to_erase(entity)}"], as_json=as_json)


def _erase_in_folder(way: ConnectionOptions, entity: EntityId, *, as_json: bool) -> None:
    """Erase in the data folder of the settings, or at the service that uses it."""
    data_dir = Path(loaded_settings(way.settings).data_dir)
    from connectivity.maintenance import erasure
    from connectivity.store.folder_lock import DataFolderLocked

    try:
        with exit_on(SettingsError, code=2), exit_on(erasure.UnknownEntity, erasure.ErasureUnavailable):
            try:
                record = erasure.erase_offline(data_dir, entity, user())
            except DataFolderLocked:
                record = _request_erasure(way.service(), entity)
    except RequestFailed as error:
        print_error(f"a running service uses the data folder and returned an error: {error}")
        raise typer.Exit(error.exit_code) from None
    _print_record(record, as_json=as_json)
    # It is done, whether this can be read or not.
    with contextlib.suppress(erasure.ErasureUnavailable):
        _print_remarks(_note_of_earlier(erasure.read_records(data_dir), record), as_json=as_json)
        if erasure.has_policy(data_dir, entity):
            _print_remarks([f"its policy with the same ID {_how_to_erase(entity)}"], as_json=as_json)


def _request_erasure(service: ServiceClient, entity: EntityId) -> dict[str, Any]:
    """Return the response of a running service. Raises RequestFailed."""
    wanted = {"entity": str(entity), "type": entity.type.value, "by": user()}
    record: dict[str, Any] = service.ask("POST", "erasures", body=wanted).document
    return record


def _print_record(record: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        print_fields(record)


def _print_remarks(remarks: Iterable[str], *, as_json: bool) -> None:
    for remark in remarks:
        typer.echo(escape_control_characters(remark), err=as_json)


def _note_of_earlier(records: Iterable[Mapping[str, Any]], record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note if the entity was erased before."""
    from connectivity.maintenance import erasure

    if (earlier := erasure.previous_erasure(records, record)) is not None:
        number, at = earlier["id"], earlier["requested_at"]
        yield (
            f"{record['entity']} was erased before, as number {number} at {at}: the erasure is repeated and covers "
            "later data"
        )


def _how_to_erase(entity: EntityId) -> str:
    """Return what remains with a policy, and how to erase it."""
    return (
        "remains, with the subjects that it names; unless other things need it, erase it, too: "
        f"connectivity history erase {shlex.quote(entity.id)} --type policy"
    )


@app.command()
def erasures(
    url: _Url = None, token_file: TokenFile = None, settings: SettingsFile = None, as_json: AsJson = False
) -> None:
    """List the erasures with requester, time of the request, and times of completion in journal and lake."""
    way = ConnectionOptions(url, token_file, settings)
    if way.service_url is not None:
        with service_errors():
            found = way.service().items("erasures")
    else:
        found = _stored_erasures(way)
    print_list(found, lambda: found, "no erasures", as_json=as_json)


def _stored_erasures(way: ConnectionOptions) -> list[dict[str, Any]]:
    """Return the records of the settings' data folder.

    Ends the command with 1 where they cannot be read.
    """
    loaded = loaded_settings(way.settings)
    from connectivity.maintenance import erasure

    with exit_on(erasure.ErasureUnavailable):
        return erasure.read_records(Path(loaded.data_dir))
