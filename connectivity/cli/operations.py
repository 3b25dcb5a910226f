"""`connectivity subscriptions …` and `audit`: open subscriptions, and the audit log.

IDs are shown by their first characters, since the whole ID gives access.
"""

from __future__ import annotations

from typing import Annotated

import typer

from connectivity.cli import tables
from connectivity.cli.command_group import CommandGroup
from connectivity.cli.http_client import ServiceClient
from connectivity.cli.options import AsJson, refuse_empty, service_command
from connectivity.cli.output import print_error, print_json, print_list

_MOST = 10_000
"""The most subscriptions that the service lists."""

app = CommandGroup(help="List and cancel the open subscriptions of a running service.")


@app.command("list")
@service_command
def list_(
    service: ServiceClient,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="Maximum number of entries.")] = 1_000,
    as_json: AsJson = False,
) -> None:
    """List the open subscriptions with connection, entity, demand and number of sent elements."""
    found, total = service.some(limit, "connectivity", "subscriptions")
    if len(found) < total:
        print_error(f"only {len(found)} of {total} subscriptions are shown; --limit accepts at most {_MOST}")
    print_list(found, lambda: tables.align_columns(found), "no subscriptions", as_json=as_json)


@app.command()
@service_command
def cancel(
    service: ServiceClient,
    prefix: Annotated[
        str,
        typer.Argument(metavar="PREFIX", help="The first characters of the subscription's ID.", callback=refuse_empty),
    ],
    as_json: AsJson = False,
) -> None:
    """End the subscription whose ID begins with PREFIX; its client receives `failed`."""
    service.ask("DELETE", "connectivity", "subscriptions", prefix)
    if as_json:
        print_json([{"id": prefix, "done": "cancelled"}])
    else:
        typer.echo(f"{prefix}: cancelled")


@service_command
def audit(
    service: ServiceClient,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show the audit log, newest entries first: who changed which connection, when and how."""
    found = service.items("audit", limit=str(limit))
    print_list(found, lambda: tables.align_columns(found), "no entries", as_json=as_json)
