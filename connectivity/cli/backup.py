"""`connectivity backup`: copies journal and lake to a folder. A failed copy leaves nothing behind."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from connectivity.cli.options import AsJson, SettingsFile, loaded_settings
from connectivity.cli.output import exit_on, print_error, print_fields, print_json
from connectivity.errors import CommandFailed
from connectivity.stop_signals import stop_signals

MIB = 1 << 20


@contextlib.contextmanager
def _signals_unwind() -> Iterator[None]:
    """Raise SystemExit at a stop signal, so that the copy is removed."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the backup, new or empty.")],
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="EARLIER",
            help="An earlier backup on the same disk. Data files that both have become hard links instead of copies.",
        ),
    ] = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy journal and lake to a folder from which a service can start.

    You can run this command while the service is running."""
    loaded = loaded_settings(settings)
    from connectivity.maintenance import backup as work

    with exit_on(CommandFailed), _signals_unwind():
        made = work.back_up(loaded, folder, like)
    if as_json:
        print_json(made)
    else:
        print_fields(
            {
                "events": f"{made['events']:,}",
                "in the lake": None if made["lake"] is None else f"up to {made['lake']:,}",
                "size": f"{made['bytes'] / MIB:,.1f} MiB, {made['linked'] / MIB:,.1f} MiB of them shared",
            }
        )
    if (key := made["key_left_out"]) is not None:
        print_error(
            f"the backup does not contain {key}, which is needed to decrypt stored secrets; keep a separate copy of it"
        )
