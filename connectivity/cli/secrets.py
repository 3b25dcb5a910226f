"""`connectivity secrets …`: the keys of the secrets that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from connectivity.cli.command_group import CommandGroup
from connectivity.cli.options import AsJson, SettingsFile, loaded_settings, user
from connectivity.cli.output import exit_on, pluralize, print_error, print_json
from connectivity.errors import SealError, SettingsError

app = CommandGroup(help="Create and rotate the keys that encrypt stored secrets.")


@app.command(name="new-key")
def new_key(
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add the key as the first line of this file. The command creates a missing file."
        ),
    ] = None,
) -> None:
    """Create a key, and print it or add it to a key file before the existing keys."""
    from connectivity.maintenance import keyring
    from connectivity.security.keys import key_id, key_text, new_key

    made = new_key()
    if file is None:
        typer.echo(key_text(made))
        return
    with exit_on(SettingsError, code=2):
        keyring.add_key(file, made)
    typer.echo(f"{file}: key {key_id(made)} encrypts from the next start on; the other keys in the file still decrypt")


@app.command()
def rotate(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """Encrypt all stored secrets with the newest key. The service must be stopped."""
    loaded = loaded_settings(settings)
    from connectivity.maintenance import keyring
    from connectivity.store.folder_lock import DataFolderLocked

    try:
        with exit_on(SettingsError, code=2), exit_on(DataFolderLocked, keyring.RotationFailed):
            done = keyring.rotate_offline(loaded, user())
    except SealError as error:
        print_error(f"{error}; nothing has changed")
        raise typer.Exit(1) from None
    if as_json:
        print_json(done._asdict())
        return
    typer.echo(
        f"{pluralize(done.secrets, 'secret')} in {pluralize(done.revisions, 'revision')} encrypted with key {done.key}"
    )
    if done.unneeded:
        typer.echo(f"no longer needed: {', '.join(done.unneeded)}")
