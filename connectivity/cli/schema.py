"""The commands `schema …`: JSON Schemas of the files that people write."""

from __future__ import annotations

import typer

from connectivity.cli.output import print_json

app = typer.Typer(help="Print JSON Schemas of connection files and settings for editors.", no_args_is_help=True)


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
