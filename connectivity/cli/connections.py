"""`connectivity connections …`: operations on the connections of a running service, over its HTTP API.

The desired status (`connectionStatus`) and the actual one (`liveStatus`) differ: `list` shows the former, `status` the
latter. `--json` prints the API's response, or what was done: `[{"id": "depot", "done": "closed"}]`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from connectivity.cli import tables
from connectivity.cli.command_group import CommandGroup
from connectivity.cli.http_client import NOT_FOUND, ServiceClient, ServiceRefused, ServiceUnreachable
from connectivity.cli.options import A_YEAR, AsJson, Paths, confirm, connection_ids, refuse_empty, service_command
from connectivity.cli.output import (
    colorize,
    print_error,
    print_fields,
    print_json,
    print_json_line,
    print_list,
    print_table,
)
from mappings.texts import escape_control_characters
from mappings.timestamps import parse_instant

if TYPE_CHECKING:
    from connectivity.cli.apply import StepOutcome
    from connectivity.cli.plan import PlanStep

RESTART_GRACE_SECONDS = 60.0
"""How long a restarted service may take until it knows the connection again."""

_MAX_REMEMBERED_ENTRIES = 100_000
_FIRST_SERVER_FAULT = 500


class Level(str, Enum):
    """The level of a log entry."""

    SUCCESS = "success"
    FAILURE = "failure"


class PrintedEntries:
    """The printed entries: each as often as it was in one response at most."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def new(self, found: object) -> list[Mapping[str, Any]]:
        """Return the new entries of a response, in its order."""
        entries = tables.objects(found.get("connectionLogs")) if isinstance(found, dict) else []
        keys = [json.dumps(entry, sort_keys=True) for entry in entries]
        before: Counter[str] = Counter()
        fresh = []
        for key, entry in zip(keys, entries, strict=True):
            before[key] += 1
            if before[key] > self._counts.get(key, 0):
                fresh.append(entry)
        for key, count in before.items():
            self._counts[key] = max(count, self._counts.pop(key, 0))
        while len(self._counts) > _MAX_REMEMBERED_ENTRIES:
            # The one that no answer has held for the longest time.
            del self._counts[next(iter(self._counts))]
        return fresh


def follow_log(
    service: ServiceClient,
    connection: str,
    seconds: float,
    notify: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Mapping[str, Any]]:
    """Yield new entries without end. `notify` is called when the service disappears and comes back.

    Raises RequestFailed for permanent errors: no permission, no such connection.
    """
    seen, away = PrintedEntries(), False
    missed: float | None = None
    while True:
        try:
            found = service.get("connections", connection, "logs")
        except ServiceUnreachable as error:
            missed = clock()
            if not away:
                notify(f"{error}; waiting")
                away = True
        except ServiceRefused as error:
            is_back = missed is not None and clock() - missed <= RESTART_GRACE_SECONDS
            if error.http_status < _FIRST_SERVER_FAULT and not (error.http_status == NOT_FOUND and is_back):
                raise
        else:
            if away:
                notify(f"{service.address.display_url}: available again")
                away = False
            yield from seen.new(found)
        sleep(seconds)


app = CommandGroup(help="List, show, change, test, open, close and monitor the connections of a running service.")

CHANGES = 3
"""The exit code of a plan that would change something."""

_COMMAND = "connectivity.commands:"
_IDS: Mapping[str, str | None] = {"ids-only": "true"}
_LISTED = "id,connectionType,connectionStatus,name,_owner,_file,_override,_problems"

ConnectionId = Annotated[
    str, typer.Argument(metavar="ID", help="Connection ID.", autocompletion=connection_ids, callback=refuse_empty)
]
ConnectionIds = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="Connection IDs.", autocompletion=connection_ids, callback=refuse_empty),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.command("list")
@service_command
def list_(
    service: ServiceClient,
    ids: Annotated[bool, typer.Option("--ids", help="Print only IDs, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the connections with desired status, owner (API or file), and problems of a changed file."""
    query = _IDS if ids else {"fields": None if as_json else _LISTED}
    found = service.items("connections", **query)
    if ids and not as_json:
        for each in found:
            typer.echo(escape_control_characters(str(each)))
    else:
        print_list(found, lambda: tables.connections(found), "no connections", as_json=as_json)


@app.command()
@service_command
def show(
    service: ServiceClient,
    connection: ConnectionId,
    revision: Annotated[int | None, typer.Option(min=1, help="Show this revision instead of the current one.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Show the document as it was at this time, such as 2026-02-03T09:12:45Z."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a connection's document as YAML, ready for a connection file. Secrets appear as *****."""
    if revision is not None and at is not None:
        raise typer.BadParameter("found --revision and --at, expected only one of them")
    if at is not None and parse_instant(at) is None:
        raise typer.BadParameter(f"--at: found {at!r}, expected a time with its zone, such as 2026-02-03T09:12:45Z")
    headers = {}
    if revision is not None:
        headers["at-historical-revision"] = str(revision)
    if at is not None:
        headers["at-historical-timestamp"] = at
    found = service.ask("GET", "connections", connection, headers=headers).document
    if as_json:
        print_json(found)
    else:
        typer.echo(tables.as_yaml(found), nl=False)


@app.command()
@service_command
def apply(
    service: ServiceClient,
    paths: Paths,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Show the changes without making them. The command exits with 3 if there are changes."
        ),
    ] = False,
    yes: Yes = False,
    secrets: Annotated[
        bool,
        typer.Option(
            "--secrets", help="Also apply documents that differ at most in secrets: the command cannot compare secrets."
        ),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Delete every connection that the API owns and that is in none of the files."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create and change connections that the API owns, so that they match connection files.

    The command shows the changes of each field, asks for confirmation, and makes the changes. If someone else changes a
    connection meanwhile, the command leaves that connection alone. It refuses connections that a file of the service owns.
    It compares documents only: an unchanged document is a success, even if the service cannot open the connection.
    """
    # They import the validation, and so a large part of the service.
    from connectivity.cli.apply import carry_out_all, fetch_stored, load_documents
    from connectivity.cli.plan import CHANGING_ACTIONS, Action, decide, summary

    wanted = load_documents(paths, as_json=as_json)
    if not wanted:
        print_error("found no connection in the files, expected at least one; name other files")
        raise typer.Exit(2)
    steps = decide(wanted, fetch_stored(service, wanted), secrets=secrets, prune=prune)
    changes = [step for step in steps if step.action in CHANGING_ACTIONS]
    is_refused = any(step.action is Action.REFUSED for step in steps)
    outcomes: dict[str, StepOutcome] = {}
    if not as_json:
        _print_plan(steps)
    try:
        if changes and not (plan or is_refused):
            confirm(f"Make these changes ({summary(changes)})?", yes=yes)
            for name, outcome in carry_out_all(service, changes, wanted):
                outcomes[name] = outcome
                if not as_json:
                    _print_outcome(name, outcome.failure)
    finally:
        if as_json:
            print_json(_plan_as_json(steps, outcomes))
    if is_refused:
        print_error("nothing was changed, because a file owns some of these connections; edit that file to change them")
    if is_refused or any(each.failure for each in outcomes.values()):
        raise typer.Exit(1)
    if plan and changes:
        raise typer.Exit(CHANGES)


def _print_plan(steps: Sequence[PlanStep]) -> None:
    from connectivity.cli.plan import lines, summary

    for step in steps:
        reason = escape_control_characters(f": {step.reason}" if step.reason else "")
        typer.echo(f"{escape_control_characters(step.id)}: {colorize(step.action.value)}{reason}")
        for line in lines(step):
            typer.echo(f"  {escape_control_characters(line)}")
    typer.echo(summary(steps))


def _plan_as_json(steps: Sequence[PlanStep], outcomes: Mapping[str, StepOutcome]) -> dict[str, Any]:
    """Return the plan as JSON, with the result of each step that was begun."""
    from connectivity.cli.plan import step_as_json

    done = {name: {"done": each.failure is None, "failure": each.failure} for name, each in outcomes.items()}
    return {"connections": [step_as_json(step) | done.get(step.id, {}) for step in steps]}


def _print_outcome(name: str, failure: str | None) -> None:
    if failure is None:
        typer.echo(f"{name}: done")
    else:
        print_error(f"{name}: {failure}")


@app.command("test")
@service_command
def run_test(
    service: ServiceClient,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A connection file.")],
    connection: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="ID of the connection to test, if the file has several connections."),
    ] = None,
    sample: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a sample message to map, or - for standard input.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header of the sample. Repeat the option for several headers."),
    ] = None,
    source: Annotated[
        int, typer.Option(min=0, metavar="N", help="The index of the source that receives the sample.")
    ] = 0,
    address: Annotated[
        str | None, typer.Option(help="The address that receives the sample. Default: the first address of the source.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test a connection: check every address, and map a sample message.

    The command stores nothing and sends nothing. The service itself connects and resolves secret
    references, on the machine where it runs.
    """
    from connectivity.cli.apply import (
        connection_test_of,
        connection_test_result,
        load_documents,
        read_sample,
        select_document,
    )

    if sample is None and (header or address is not None or source):
        print_error("found --header, --source or --address without --sample; add --sample")
        raise typer.Exit(2)
    document = select_document(load_documents([path], as_json=as_json), connection)
    wanted = connection_test_of(document, read_sample(sample), header or [], source, address)
    try:
        found = connection_test_result(service, wanted)
    except ServiceRefused as error:
        # The results before the failure are printed too.
        report = error.fault if as_json else error.fault.get("report")
        _print_connection_test(report, as_json=as_json)
        raise
    _print_connection_test(found, as_json=as_json)
    if not tables.is_good(found):
        raise typer.Exit(1)


def _print_connection_test(report: object, *, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    if rows := tables.connection_test(report):
        print_table(rows)
    for line in tables.test_sample(report):
        typer.echo(escape_control_characters(line))


@app.command()
@service_command
def delete(service: ServiceClient, connections: ConnectionIds, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete connections that the API owns. The command refuses connections that a file owns."""
    confirm(f"Delete {', '.join(connections)}?", yes=yes)
    _do_each(connections, lambda it: service.ask("DELETE", "connections", it), "deleted", as_json=as_json)


@app.command("open")
@service_command
def open_(service: ServiceClient, connections: ConnectionIds, as_json: AsJson = False) -> None:
    """Open connections, and wait until they are connected."""
    _do_each(connections, lambda it: _command(service, it, "openConnection"), "open", as_json=as_json)


@app.command()
@service_command
def close(service: ServiceClient, connections: ConnectionIds, as_json: AsJson = False) -> None:
    """Close connections, and wait until they are closed."""
    _do_each(connections, lambda it: _command(service, it, "closeConnection"), "closed", as_json=as_json)


@app.command()
@service_command
def status(
    service: ServiceClient,
    connection: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Connection ID. Default: all.", autocompletion=connection_ids, callback=refuse_empty
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the status of one connection, with its clients, sources and targets, or of all connections."""
    found = service.get("connections", connection, "status") if connection is not None else _statuses(service)
    if as_json or isinstance(found, list):
        print_list(found, lambda: list(map(tables.live, tables.objects(found))), "no connections", as_json=as_json)
    else:
        print_fields(tables.live(found))
        if resources := tables.resources(found):
            typer.echo()
            print_table(resources)


@app.command()
@service_command
def metrics(
    service: ServiceClient,
    connection: ConnectionId,
    reset: Annotated[bool, typer.Option("--reset", help="Reset the counters.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the metrics of a connection for the last minute, hour and day."""
    if reset:
        _command(service, connection, "resetConnectionMetrics")
        if not as_json:
            typer.echo(f"{connection}: counters reset")
            return
    found = service.get("connections", connection, "metrics")
    print_list(found, lambda: tables.metrics(found), f"{connection}: no metrics", as_json=as_json)


@app.command()
@service_command
def logs(
    service: ServiceClient,
    connection: ConnectionId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new entries until Ctrl-C.")] = False,
    level: Annotated[Level | None, typer.Option(help="Show only entries of this level.")] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=A_YEAR, metavar="SECONDS", help="How often to request new entries.")
    ] = 1.0,
    enable: Annotated[
        bool, typer.Option("--enable", help="Enable the connection's log for its default duration, starting now.")
    ] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Delete the entries of the log.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON. With --follow, print one object per line.")
    ] = False,
) -> None:
    """Show the log of a connection: the latest entries of each category, oldest first."""
    if enable:
        _command(service, connection, "enableConnectionLogs")
        if "enabledSince" not in service.get("connections", connection, "logs"):
            print_error(f"{connection}: it is not running, so it has no log; opening it enables its log")
            raise typer.Exit(1)
    if reset:
        _command(service, connection, "resetConnectionLogs")
    if follow:
        for entry in follow_log(service, connection, interval, print_error):
            if level in (None, entry.get("level")):
                print_json_line(entry) if as_json else _print_entry(entry)
        return
    if (enable or reset) and not as_json:
        typer.echo(f"{connection}: {'entries deleted' if reset else 'log enabled'}")
        return
    found = service.get("connections", connection, "logs")
    if as_json:
        print_json(found if level is None else tables.of_level(found, level.value))
        return
    entries = tables.objects(tables.of_level(found, level and level.value)["connectionLogs"])
    for entry in entries:
        _print_entry(entry)
    if not entries:
        typer.echo(f"{connection}: no entries")


def _print_entry(entry: Mapping[str, Any]) -> None:
    when, how, what = tables.entry(entry)
    typer.echo(
        f"{escape_control_characters(when)}  {colorize(escape_control_characters(how))}  {escape_control_characters(what)}"
    )
    sys.stdout.flush()


@app.command()
@service_command
def revisions(service: ServiceClient, connection: ConnectionId, as_json: AsJson = False) -> None:
    """List the revisions of a connection, newest first: time, author and action."""
    found = service.items("connections", connection, "revisions")
    print_list(found, lambda: tables.align_columns(found), f"{connection}: no revisions", as_json=as_json)


def _do_each(connections: Sequence[str], act: Callable[[str], object], done: str, *, as_json: bool) -> None:
    """Act on each connection in turn, and print the result of each.

    Ends the command with 1 if one was refused. Raises RequestFailed if the others would fail too.
    """
    finished, refused = [], False
    try:
        for connection in connections:
            try:
                act(connection)
            except ServiceRefused as error:
                refused = True
                print_error(f"{connection}: {error.why}")
                continue
            finished.append({"id": connection, "done": done})
            if not as_json:
                typer.echo(f"{connection}: {colorize(done)}")
    finally:
        if as_json:
            print_json(finished)
    if refused:
        raise typer.Exit(1)


def _command(service: ServiceClient, connection: str, name: str) -> None:
    """Carry out one of the API's commands. Raises RequestFailed."""
    service.ask("POST", "connections", connection, "command", body=_COMMAND + name, content_type="text/plain")


def _statuses(service: ServiceClient) -> list[Any]:
    """Return the status of every connection; those deleted meanwhile are left out.

    Raises RequestFailed.
    """
    found = []
    for connection in service.items("connections", **_IDS):
        try:
            found.append(service.get("connections", str(connection), "status"))
        except ServiceRefused as error:
            if error.http_status != NOT_FOUND:
                raise
    return found
