"""`connectivity pipeline …`: the Spark side by hand, with the service's settings.

`run` is what the service does by itself unless `spark.mode` says otherwise. Exit codes: 0 done; 1 failed, and may go well
the next time (with `verify`: lake and journal differ); 2 settings that cannot be used; 3 another pipeline writes the lake;
4 Spark cannot run here; 5 lake and journal do not fit together.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from connectivity.cli.given import AsJson, SettingsFile, loaded_settings
from connectivity.cli.output import complain, print_fields, print_json, print_table

app = typer.Typer(help="Move the journal into the lake, by hand.", no_args_is_help=True)


@app.command()
def run(settings: SettingsFile = None) -> None:
    """Follow the journal until told to stop: for `spark.mode: external`."""
    _become("run", settings)


@app.command()
def optimize(settings: SettingsFile = None) -> None:
    """Make small files of the lake large ones, and remove what nobody needs."""
    _become("optimize", settings)


@app.command()
def retention(
    settings: SettingsFile = None,
    preview: Annotated[bool, typer.Option("--preview", help="Say what would go, and change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --preview.")] = False,
) -> None:
    """Delete the events that are past their time, or say what that would be, by namespace."""
    if not preview:
        _become("retention", settings)
        return
    loaded = loaded_settings(settings)
    from connectivity import pipeline

    try:
        found = pipeline.preview(loaded)
    except pipeline.PipelineEnded as error:
        complain(str(error))
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json(found)
    elif found:
        print_table(found)
    else:
        typer.echo("nothing would go")


@app.command()
def verify(
    settings: SettingsFile = None,
    every: Annotated[bool, typer.Option("--all", help="Fold the events of every entity, not of some.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Do not go on where the last one was interrupted.")
    ] = False,
) -> None:
    """Compare lake and journal, row for row, up to the watermark, and `latest` with its events; goes on if interrupted."""
    _become("verify", settings, *(["--all"] if every else []), *(["--restart"] if restart else []))


class Half(str, Enum):
    """What is made anew."""

    LATEST = "latest"
    JOURNAL = "journal"


@app.command()
def rebuild(
    settings: SettingsFile = None,
    only: Annotated[Half | None, typer.Option(help="One of the two alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make `latest` anew from the lake's events, then the journal's current state; goes on if interrupted.

    The service must be stopped: nobody else may write journal or lake meanwhile.
    """
    loaded = loaded_settings(settings)
    from connectivity import rebuild as module

    outcome = module.rebuild(loaded, None if only is None else module.Half(only.value), complain)
    if outcome.reason is not None:
        complain(outcome.reason)
    if as_json:
        print_json(outcome.changed)
    else:
        for half, counts in outcome.changed.items():
            print_fields({f"{half} {name}": value for name, value in counts.items()})
    raise typer.Exit(outcome.exit_code)


@app.command()
def status(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """Say how far the lake is behind, what the last batch was, and what the tables consist of."""
    loaded = loaded_settings(settings)
    from connectivity import pipeline

    try:
        found = pipeline.status(loaded)
    except pipeline.NotReadable as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if as_json:
        print_json(found)
    else:
        print_fields(found)


def _become(action: str, settings: Path | None, *options: str) -> None:
    """This process becomes the pipeline's: its signals and its exit code are then the pipeline's own."""
    loaded = loaded_settings(settings)
    from connectivity import pipeline

    command = pipeline.command(loaded, action, *options)
    os.execv(command[0], command)
