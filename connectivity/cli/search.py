"""`connectivity search`: finds things in a running service.

Pages are requested one after the other, up to `--limit`. Each page shows the state when it was read, so a thing whose
place in the order changes may be missing or come twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from connectivity.cli import tables
from connectivity.cli.http_client import ServiceClient
from connectivity.cli.options import AsJson, service_command
from connectivity.cli.output import print_error, print_json, print_list
from mappings.texts import escape_control_characters

_PAGE = 200
"""The most things that one answer has."""


@service_command
def search(
    service: ServiceClient,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="RQL filter, such as 'gt(attributes/size,3)'. Default: all things."),
    ] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="FIELDS", help="Fields to show, such as thingId,attributes(room,size).")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="PATHS", help="Sort order, such as -attributes/size,+thingId. Default: thingId."),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="Search only in this namespace. Repeat the option for several namespaces.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of things.")] = 1_000,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of things.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the search plan instead of searching. Only admins may do this.")
    ] = False,
    subjects: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="SUBJECT",
            help="Search with this subject instead of the token's subjects. Only admins may do this. Repeat the option for "
            "several subjects.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search things, and print the parts that the token's subjects can read."""
    asked = {"filter": query, "namespaces": ",".join(namespaces) if namespaces else None, "as": subjects or None}
    if count:
        number = service.ask("GET", "search", "things", "count", query=asked).document
        print_json(number) if as_json else typer.echo(number)
        return
    order = f"sort({','.join(map(_with_sign, sort.split(',')))})" if sort else None
    if explain:
        plan = service.ask("GET", "search", "things", "plan", query={**asked, "option": order}).document
        if not isinstance(plan, dict) or not isinstance(plan.get("text"), str):
            raise service.unexpected_response()
        print_json(plan) if as_json else typer.echo(escape_control_characters(plan["text"], keep="\n"))
        return
    found, is_all = _collect(_pages(service, {**asked, "fields": fields}, order, limit), limit)
    if not is_all:
        print_error(f"{len(found)} things are shown, and more exist; raise --limit to see more")
    print_list(
        found,
        lambda: tables.align_columns([tables.leaves(thing) for thing in found] if fields else found),
        "no things",
        as_json=as_json,
    )


def _pages(
    service: ServiceClient, asked: Mapping[str, Any], order: str | None, limit: int
) -> Iterator[tuple[list[Any], bool]]:
    """Yield the pages, each with whether it is the last one. Raises RequestFailed."""
    cursor: str | None = None
    left = limit
    while True:
        options = [f"size({min(left, _PAGE)})", *([order] if order else []), *([f"cursor({cursor})"] if cursor else [])]
        answer = service.ask("GET", "search", "things", query={**asked, "option": ",".join(options)}).document
        items, cursor = (answer.get("items"), answer.get("cursor")) if isinstance(answer, dict) else (None, None)
        if not isinstance(items, list) or not isinstance(cursor, str | None):
            raise service.unexpected_response()
        left -= len(items)
        yield items, cursor is None
        if cursor is None:
            return


def _collect(pages: Iterator[tuple[list[Any], bool]], limit: int) -> tuple[list[Any], bool]:
    """Return that many things at most, and whether these are all."""
    found: list[Any] = []
    for items, is_last in pages:
        found += items
        if is_last or len(found) >= limit:
            return found, is_last
    return found, True


def _with_sign(path: str) -> str:
    """A path to sort by with its sign."""
    return path if path.startswith(("+", "-")) else f"+{path}"
