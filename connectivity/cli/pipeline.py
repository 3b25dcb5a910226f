"""`connectivity pipeline …`: commands on the pipeline and the lake, with the service's settings.

The service does `run` by itself unless `spark.mode` says otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from connectivity.cli.command_group import CommandGroup
from connectivity.cli.options import AsJson, SettingsFile, loaded_settings
from connectivity.cli.output import exit_on, pluralize, print_error, print_fields, print_json, print_list, print_table
from connectivity.errors import SettingsError

if TYPE_CHECKING:
    from connectivity.config.settings import Settings

app = CommandGroup(
    help="Inspect, verify and repair the lake, and run the pipeline that copies events from the journal to the lake."
)


@app.command()
def run(settings: SettingsFile = None) -> None:
    """Run the pipeline until SIGTERM or SIGINT. Use this command if `spark.mode` is `external`."""
    loaded = _settings_with_lake(settings)
    from connectivity.maintenance import pipeline_process

    # The pipeline replaces this process, with its signals and exit code.
    command = pipeline_process.command(loaded, "run")
    os.execve(command[0], command, pipeline_process.environment())


@app.command()
def install(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """Download Delta's jars, which Spark needs to write the lake, and verify their checksums."""
    found = _run_action(loaded_settings(settings), "install")
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found['folder']}: {'fetched' if found['fetched'] else 'complete before'}")


@app.command()
def optimize(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """Compact small files of the lake, and remove unused files."""
    found = _run_action(_settings_with_lake(settings), "optimize")
    if as_json:
        print_json(found)
    else:
        print_table([{"table": name, **size} for name, size in found["tables"].items()])


@app.command()
def retention(
    settings: SettingsFile = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Show the number of events to delete, and delete none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete events that are older than their retention, or preview the deletion by namespace."""
    if not preview:
        found = _run_action(_settings_with_lake(settings), "retention")
        if as_json:
            print_json(found)
        else:
            typer.echo(f"{pluralize(found['events'], 'event')} deleted" if found["events"] else "no events deleted")
        return
    loaded = loaded_settings(settings)
    from connectivity.maintenance import pipeline_process

    with exit_on(pipeline_process.PipelineEnded):
        namespaces = pipeline_process.preview(loaded)
    print_list(namespaces, lambda: namespaces, "no events would be deleted", as_json=as_json)


@app.command()
def verify(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """Check that the lake is complete and undamaged, and agrees with the journal up to the watermark.

    The command reads every file of the lake. It compares the journal's events with the lake's, and the journal's states with
    every row of `latest`, with the search index, and with the states that result from the events. Without a lake, the
    command compares only the search index.
    """
    differences: list[dict[str, Any]] = []

    def on_event(message: dict[str, Any]) -> None:
        if message["event"] == "difference":
            differences.append({name: value for name, value in message.items() if name != "event"})
        elif message["event"] == "compared" and sys.stderr.isatty():
            typer.echo(f"\r\033[Kentity {message['entities']:,} of {message['total']:,}", nl=False, err=True)

    found = _run_action(loaded_settings(settings), "verify", on_event=on_event)
    if sys.stderr.isatty():
        typer.echo("\r\033[K", nl=False, err=True)
    if as_json:
        print_json({**found, "differences": differences, "found": found["differences"]})
    else:
        _print_decision(found, differences)
    raise typer.Exit(1 if found["differences"] else 0)


def _print_decision(found: dict[str, Any], differences: list[dict[str, Any]]) -> None:
    """Print sentences, and a table of differences."""
    if differences:
        print_table([{"table": it["table"], "event": it["seq"], **_without(it, "table", "seq")} for it in differences])
    if (more := found["differences"] - len(differences)) > 0:
        typer.echo(f"and {pluralize(more, 'difference')} more")
    what = pluralize(found["differences"], "difference") if found["differences"] else "the same"
    events = "no events" if found["first"] > found["last"] else f"events {found['first']:,} to {found['last']:,}"
    typer.echo(f"lake and journal: {what} ({events}, {pluralize(found['entities'], 'entity')})")
    if found["indexed"]:
        typer.echo(f"search index: compared with the states of {pluralize(found['indexed'], 'entity')}")
    if found["unindexed"]:
        typer.echo(f"the search index is being built: {pluralize(found['unindexed'], 'entity')} not in it yet")
    if found["waiting"]:
        newer = pluralize(found["waiting"], "newer event")
        typer.echo(f"{newer} not compared yet: a running pipeline merges them into `latest` within minutes")
    if found["erasures_pending"]:
        waiting = pluralize(found["erasures_pending"], "erasure")
        typer.echo(f"{waiting} not carried out in the lake yet: the pipeline does that while it runs")


def _without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


class RebuildChoice(str, Enum):
    """The part to rebuild."""

    LATEST = "latest"
    JOURNAL = "journal"
    INDEX = "index"


@app.command()
def rebuild(
    settings: SettingsFile = None,
    only: Annotated[RebuildChoice | None, typer.Option(help="Rebuild only this part.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the lake's table `latest`, the journal's states, and the search index, in this order.

    Stop the service first, because no other process may write journal or lake meanwhile. The exception is
    `--only index`: if the service is running, the service rebuilds the index. If the command was interrupted, run it again.
    """
    loaded = _settings_with_lake(settings) if only is RebuildChoice.LATEST else loaded_settings(settings)
    from connectivity.maintenance import rebuild as module

    with exit_on(SettingsError, code=2):
        outcome = module.rebuild(loaded, None if only is None else module.RebuildPart(only.value), print_error)
    if outcome.reason is not None:
        print_error(outcome.reason)
    if as_json:
        print_json(outcome.changed)
    else:
        for half, counts in outcome.changed.items():
            print_fields({f"{half} {name}": value for name, value in counts.items()})
    raise typer.Exit(outcome.exit_code)


@app.command()
def status(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """Show how far the lake is behind the journal, the last batch, and the size of the tables."""
    loaded = loaded_settings(settings)
    from connectivity.maintenance import pipeline_process

    with exit_on(pipeline_process.NotReadable):
        found = pipeline_process.status(loaded)
    if as_json:
        print_json(found)
    else:
        print_fields(_flat(found))


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields flattened: `batch rows`, `tables events files`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        found |= _flat(value, f"{prefix}{name} ") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _settings_with_lake(file: Path | None) -> Settings:
    """Return the settings. Ends the command with 2 if they are invalid, or say that there is no lake.

    A mode that is `off` by default is not refused: the pipeline then reports the missing extra.
    """
    loaded = loaded_settings(file)
    if loaded.spark.mode.value == "off" and "mode" in loaded.spark.model_fields_set:
        print_error(
            "spark.mode: found off, expected external or embedded; with off there is no lake, and the journal keeps "
            "everything"
        )
        raise typer.Exit(2)
    return loaded


def _run_action(
    settings: Settings, action: str, on_event: Callable[[dict[str, Any]], object] = lambda _: None
) -> dict[str, Any]:
    """Return the result of a pipeline process; exit with its code if it failed."""
    from connectivity.maintenance import pipeline_process

    with exit_on(pipeline_process.PipelineEnded):
        return pipeline_process.answer(settings, action, on_event=on_event)
