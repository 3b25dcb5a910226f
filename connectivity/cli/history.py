"""`connectivity history …`: what operators do to the history of entities.

`erase` asks the service, over its HTTP API, if one runs on the data folder; else it does the journal's part itself.
Exit codes: 0 done, or begun by the service; 1 there is no such entity, or it cannot be erased now; 2 what was given cannot
be used; 4 the service that has the data folder wants another token; 5 it does not answer.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from connectivity.cli.export import EXITS as EXPORT_EXITS
from connectivity.cli.export import export
from connectivity.cli.given import AsJson, SettingsFile, TokenFile, Url, Way, loaded_settings, user
from connectivity.cli.output import complain, print_fields, print_json, print_table, printable

if TYPE_CHECKING:
    from mappings.ids import EntityId

app = typer.Typer(help="The history of entities: exported, or erased.", no_args_is_help=True)
app.command(epilog=EXPORT_EXITS)(export)


@app.command(
    epilog="Exit codes: 0 done, or begun by the service; 1 there is no such entity, or it cannot be erased now; 2 what was "
    "given cannot be used; 4 the service that has the data folder wants another token; 5 it does not answer."
)
def erase(
    entity: Annotated[str, typer.Argument(help="The id, such as acme.site:lamp-7, or tank-9/0 of a stream.")],
    type: Annotated[str, typer.Option(help="`thing`, `policy` or `stream`.")] = "thing",
    yes: Annotated[bool, typer.Option("--yes", help="Do it: what is erased never comes back.")] = False,
    url: Url = None,
    token_file: TokenFile = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase everything that journal and lake know of one entity, for good."""
    if not yes:
        complain(f"{type} {entity}: its whole history would be erased, for good; say --yes if that is meant")
        raise typer.Exit(2)
    loaded = loaded_settings(settings)
    from connectivity import erasing
    from connectivity.cli.asking import AskingFailed
    from connectivity.errors import SettingsError
    from connectivity.lock import DataFolderLocked

    try:
        named = erasing.entity_of(entity, type)
        try:
            record = erasing.erase_here(Path(loaded.data_dir), named, user())
        except DataFolderLocked:
            record = _asked(Way(url, token_file, settings), {"entity": entity, "type": type, "by": user()})
    except (erasing.UnknownEntity, erasing.NotErased, SettingsError) as error:
        complain(str(error))
        raise typer.Exit(2 if isinstance(error, erasing.NoEntity) else 1) from None
    except AskingFailed as error:
        complain(f"a service has the data folder: {error}")
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json(record)
    else:
        print_fields(record)
    # It is done, whether this can be read or not.
    with contextlib.suppress(erasing.NotErased):
        for remark in _remarks(Path(loaded.data_dir), named, record):
            typer.echo(printable(remark), err=as_json)


def _remarks(data_dir: Path, entity: EntityId, record: Mapping[str, Any]) -> Iterator[str]:
    """What whoever has erased something may not expect. Raises NotErased."""
    from connectivity import erasing

    if (earlier := erasing.before(data_dir, record)) is not None:
        number, at = earlier["id"], earlier["asked"]
        yield (
            f"{record['entity']} was erased before, as number {number} at {at}: all of that is done again, with what "
            "came since"
        )
    if erasing.has_policy(data_dir, entity):
        yield (
            "its policy of the same id is left, with the subjects that it names; unless other things need it, erase it, "
            f"too: connectivity history erase {shlex.quote(entity.id)} --type policy"
        )


@app.command()
def erasures(settings: SettingsFile = None, as_json: AsJson = False) -> None:
    """List what was erased: by whom, when it was asked for, and when journal and lake were done."""
    loaded = loaded_settings(settings)
    from connectivity import erasing

    try:
        found = erasing.recorded(Path(loaded.data_dir))
    except erasing.NotErased as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if as_json:
        print_json(found)
    elif found:
        print_table(found)
    else:
        typer.echo("nothing was erased")


def _asked(way: Way, wanted: dict[str, str]) -> dict[str, Any]:
    """What the running service answers. Raises AskingFailed."""
    record: dict[str, Any] = way.service().ask("POST", "erasures", body=wanted).document
    return record
