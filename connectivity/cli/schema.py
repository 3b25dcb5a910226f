"""The commands `schema …`: JSON Schemas of files, and AsyncAPI documents of connections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from connectivity.cli.command_group import CommandGroup
from connectivity.cli.options import load_files
from connectivity.cli.output import print_error, print_json

app = CommandGroup(
    help="Print JSON Schemas of connection files and settings, and the messages of connections as AsyncAPI."
)


@app.command()
def connection() -> None:
    """Print the JSON Schema of connection files: one connection, or a list of them."""
    # Imported on use: commands that call the service start several times as fast.
    from connectivity.validation.file_schema import file_schema

    print_json(file_schema())


@app.command()
def settings() -> None:
    """Print the JSON Schema of the settings file."""
    from connectivity.config.settings_schema import settings_schema

    print_json(settings_schema())


@app.command()
def asyncapi(file: Annotated[Path, typer.Argument(metavar="FILE", help="A connection file.")]) -> None:
    """Print an AsyncAPI 3 document for clients, with the messages of the connections in a file."""
    loaded = load_files([file])
    if loaded.problems:
        print_error("\n".join(map(str, loaded.problems)))
        raise typer.Exit(1)
    if not loaded.connections:
        print_error(f"{file}: found no connection, expected at least one; add one")
        raise typer.Exit(1)
    from connectivity.management.asyncapi import asyncapi_document

    print_json(asyncapi_document(loaded.connections.values()))
