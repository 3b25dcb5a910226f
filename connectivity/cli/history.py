"""`connectivity history …`: what operators do to the history of entities.

`erase` asks the service, over its HTTP API, if one runs on the data folder; else it does the journal's part itself.
Exit codes: 0 done, or begun by the service; 1 there is no such entity, or it cannot be erased now; 2 what was given cannot
be used.
"""

from __future__ import annotations

import getpass
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from connectivity.cli.export import export
from connectivity.cli.given import AsJson, SettingsFile, loaded_settings
from connectivity.cli.output import complain, print_fields, print_json, print_table
from connectivity.errors import SettingsError
from connectivity.settings import Settings

app = typer.Typer(help="The history of entities: exported, or erased.", no_args_is_help=True)
app.command()(export)

Url = Annotated[str | None, typer.Option("--url", help="Where the service listens, if not at api.host and api.port.")]

_ANSWER_SECONDS = 60.0


class _Refused(Exception):
    """The service said no."""


@app.command()
def erase(
    entity: Annotated[str, typer.Argument(help="The id, such as acme.site:lamp-7.")],
    type: Annotated[str, typer.Option(help="`thing` or `policy`.")] = "thing",
    yes: Annotated[bool, typer.Option("--yes", help="Do it: what is erased never comes back.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase everything that journal and lake know of one entity, for good."""
    if not yes:
        complain(f"{type} {entity}: its whole history would be erased, for good; say --yes if that is meant")
        raise typer.Exit(2)
    loaded = loaded_settings(settings)
    from connectivity import erasing
    from connectivity.lock import DataFolderLocked

    try:
        named = erasing.entity_of(entity, type)
        try:
            record = erasing.erase_here(Path(loaded.data_dir), named, _user())
        except DataFolderLocked:
            record = _asked(loaded, url, {"entity": entity, "type": type, "by": _user()})
    except (erasing.UnknownEntity, erasing.NotErased, SettingsError, _Refused) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if as_json:
        print_json(record)
    else:
        print_fields(record)


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


def _asked(settings: Settings, url: str | None, wanted: dict[str, str]) -> dict[str, Any]:
    """What the running service answers. Raises _Refused."""
    base = (url or f"http://{_host(settings.api.host)}:{settings.api.port}").rstrip("/")
    request = urllib.request.Request(
        f"{base}/api/2/erasures", json.dumps(wanted).encode(), {"content-type": "application/json"}
    )
    if settings.api.token is not None and (token := settings.api.token.get_secret_value()):
        request.add_header("authorization", f"Bearer {token}")
    try:
        # A proxy has no business between two programs of one machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_ANSWER_SECONDS) as answer:
            record: dict[str, Any] = json.load(answer)
            return record
    except urllib.error.HTTPError as error:
        with error:
            raise _Refused(_message(error.code, error.read())) from None
    except (OSError, ValueError) as error:
        raise _Refused(
            f"{base}: a service has the data folder, and does not answer there: {error}; try --url"
        ) from None


def _message(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered with status {status}"


def _host(host: str) -> str:
    """Where to reach what listens at `host`."""
    if host in ("0.0.0.0", "::", "[::]"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "unknown"
