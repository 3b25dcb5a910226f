"""What a shell may complete: ids of connections, as the running service has them.

A shell that waits for TAB wants an answer at once or none: nothing is asked for long, and whatever goes wrong is silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from connectivity.cli.asking import AskingFailed
from connectivity.cli.given import Way
from connectivity.errors import SettingsError

PATIENCE = 1.0
"""Seconds."""


def connection_ids(context: typer.Context, incomplete: str) -> list[str]:
    """The ids that begin so, without those that are there already; none where the service cannot be asked."""
    given = context.params
    way = Way(_text(given.get("url")), _path(given.get("token_file")), _path(given.get("settings")))
    try:
        found = way.service(PATIENCE).items("connections", **{"ids-only": "true"})
    except (AskingFailed, SettingsError):
        return []
    there = given.get("connections") or ()
    return [each for each in found if isinstance(each, str) and each.startswith(incomplete) and each not in there]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _path(value: Any) -> Path | None:
    return Path(value) if value else None
