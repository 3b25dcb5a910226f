"""What several commands are given, and what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from connectivity.cli.output import complain
from connectivity.errors import SettingsError
from connectivity.settings import Settings, load_settings

SettingsFile = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="YAML file of settings; variables count more.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def loaded_settings(file: Path | None) -> Settings:
    """The settings. Ends the command with 2, and says why, where they cannot be used."""
    try:
        return load_settings(file)
    except SettingsError as error:
        complain(str(error))
        raise typer.Exit(2) from None
