"""The commands of `connectivity`, as thin layers over the modules that do the work."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from connectivity import __version__
from connectivity.cli import connections, history, operations, pipeline, schema, secrets
from connectivity.cli.backup import backup
from connectivity.cli.command_group import EXIT_CODES_NOTE, CommandGroup
from connectivity.cli.operations import audit
from connectivity.cli.options import AsJson, Paths, load_files, loaded_settings
from connectivity.cli.output import pluralize, print_error, print_notes, print_problems
from connectivity.cli.search import search
from connectivity.config.extras import extra_of
from connectivity.stop_signals import ignore_stop_signals

app = CommandGroup(
    name="connectivity",
    help="Replay the past of any digital twin, and follow what happens next, over the broker you already use.",
    epilog=EXIT_CODES_NOTE,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"connectivity {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(connections.app, name="connections")
app.add_typer(operations.app, name="subscriptions")
app.command()(audit)
app.command()(search)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(history.app, name="history")
app.command()(backup)
app.add_typer(secrets.app, name="secrets")
app.add_typer(schema.app, name="schema")


@app.command()
def validate(paths: Paths, as_json: AsJson = False) -> None:
    """Validate connection files, and list their problems, fields without effect and security notes."""
    loaded = load_files(paths)
    print_problems(loaded.problems, as_json=as_json)
    if not as_json:
        print_notes(loaded)
    if loaded.problems:
        raise typer.Exit(1)
    if not loaded.read:
        print_error(
            f"{', '.join(map(str, paths))}: found no connection files, expected *.json, *.yaml or *.yml; name other paths"
        )
        raise typer.Exit(1)
    if not as_json:
        connections = pluralize(len(loaded.connections), "connection")
        typer.echo(f"{connections} in {pluralize(loaded.read, 'file')}, no problems")


@app.command()
def serve(
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Settings file (YAML). Environment variables (CONNECTIVITY_…) override its values."
        ),
    ] = None,
) -> None:
    """Run the service until SIGTERM, SIGINT or SIGHUP."""
    loaded = loaded_settings(settings)
    # Modules stay: the garbage collector need not search them, neither now nor while the service runs.
    gc.disable()
    # Only this command needs the brokers' client libraries, the store and the web server.
    from connectivity import service

    gc.freeze()
    gc.enable()
    code = service.main(loaded, settings)
    ignore_stop_signals()
    raise typer.Exit(code)


def _open_standard_streams() -> None:
    """Open the standard streams that are closed: they lead to the null device.

    Otherwise a file or a socket would get the number of a standard stream, and what libraries print there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - never closed


def main() -> None:
    """Run the command that the arguments name."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # Texts of a file may contain characters that the terminal cannot print.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ModuleNotFoundError as error:
        if (extra := extra_of(error.name or "")) is None:
            raise
        print_error(f"this command needs {extra.expected}")
        sys.exit(4)
    except OSError as error:
        # Commands report the errors of their files, so this one is of standard output.
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        print_error(f"standard output cannot be written: {error.strerror}; free space, or write to another disk")
        sys.exit(1)
