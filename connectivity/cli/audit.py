"""`connectivity audit`: who changed what. Exit codes as those of `connectivity connections`."""

from __future__ import annotations

from typing import Annotated

import typer

from connectivity.cli import tables
from connectivity.cli.asking import Service
from connectivity.cli.given import AsJson, reaching
from connectivity.cli.output import print_json, print_table


@reaching
def audit(
    service: Service,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Say who changed which connection, when and how, the newest first."""
    found = service.items("audit", limit=str(limit))
    if as_json:
        print_json(found)
    elif rows := tables.same_names(found):
        print_table(rows)
    else:
        typer.echo("nothing was changed")
