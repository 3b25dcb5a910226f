"""Command-line options shared by several commands."""

from __future__ import annotations

import contextlib
import getpass
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from connectivity.cli.http_client import (
    RESPONSE_TIMEOUT_SECONDS,
    URL_VARIABLE,
    RequestFailed,
    ServiceClient,
    check_token,
    parse_service_address,
    reachable,
    read_token,
    token_variable,
)
from connectivity.cli.output import exit_on, print_error
from connectivity.errors import SettingsError

if TYPE_CHECKING:
    from connectivity.config.settings import Settings
    from connectivity.management.files import LoadedFolder

IdsT = TypeVar("IdsT", str, list[str], str | None)

A_YEAR = 31_536_000.0
"""Seconds: the longest time that an option accepts."""

INTERRUPTED = 130
"""The exit code of a command that was interrupted, as shells have it."""

SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="Settings file (YAML). Environment variables override its values."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Connection files, or folders of them.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the service. Default: the environment variable CONNECTIVITY_URL, or else api.host and api.port in "
        "the settings.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token. Default: the environment variable CONNECTIVITY_TOKEN, or else api.token in the settings.",
    ),
]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options that name the service."""

    url: str | None = None
    token_file: Path | None = None
    settings: Path | None = None

    @property
    def service_url(self) -> str | None:
        """The address that an option or a variable names; None if only the settings may have one."""
        return self.url or os.environ.get(URL_VARIABLE) or None

    def service(self, seconds: float = RESPONSE_TIMEOUT_SECONDS) -> ServiceClient:
        """Return the client of the service; nothing is requested yet. Raises BadAddress, SettingsError.

        Settings are read only if they are needed. Their token is sent to their own address only, or if the settings were
        named.
        """
        url = self.service_url
        token = read_token(self.token_file) if self.token_file is not None else token_variable()
        if url is None or (token is None and self.settings is not None):
            settings = _settings(self.settings)
            url = url or _address(settings)
            token = token or _token(settings)
        return ServiceClient(parse_service_address(url), token, seconds=seconds)


_SERVICE_OPTIONS = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    for name, kind in (("url", Url), ("token_file", TokenFile), ("settings", SettingsFile))
)


def _settings(file: Path | None) -> Settings:
    from connectivity.config.settings_loader import load_settings

    return load_settings(file)


def _address(settings: Settings) -> str:
    return f"http://{reachable(settings.api.host)}:{settings.api.port}"


def _token(settings: Settings) -> str | None:
    secret = settings.api.token.get_secret_value() if settings.api.token is not None else ""
    return check_token(secret, "api.token") if secret else None


def loaded_settings(file: Path | None) -> Settings:
    """The settings. Ends the command with 2, and says why, where they cannot be used."""
    try:
        return _settings(file)
    except SettingsError as error:
        _print_settings_error(error)
        raise typer.Exit(2) from None


def _print_settings_error(error: SettingsError) -> None:
    print_error(f"{error}\nfix these settings; `connectivity schema settings` prints the allowed values")


def load_files(paths: Sequence[Path], *, for_remote_service: bool = False) -> LoadedFolder:
    """The connections of files and folders.

    Ends the command with 2, and says which, where something is not there.

    `for_remote_service`: the service that gets them may run on another machine (`connectivity.management.files.load`).
    """
    missing = [path for path in paths if not _exists(path)]
    for path in missing:
        print_error(f"{path}: found nothing, expected a file or a folder; check the path")
    if missing:
        raise typer.Exit(2)
    from connectivity.management.files import load

    return load(paths, for_remote_service=for_remote_service)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # A name too long to be one, a folder that may not be entered.
        return False


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal, unless `--yes` is given.

    Ends the command with 2 without a terminal, with 1 at no, with 130 at Ctrl-C.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print_error(f"{question} Add --yes to confirm.")
        raise typer.Exit(2)
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        # Raised for Ctrl-C and at the end of the input.
        typer.echo(err=True)
        raise typer.Exit(INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else 1) from None
    if not agreed:
        raise typer.Exit(1)


@contextlib.contextmanager
def service_errors() -> Iterator[None]:
    """End the command with the exit code of an error, and print it."""
    try:
        with exit_on(RequestFailed):
            yield
    except SettingsError as error:
        _print_settings_error(error)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def refuse_empty(value: IdsT) -> IdsT:
    """Return IDs unchanged. Refuses an empty one, which would make the path of another request."""
    if "" in ([value] if isinstance(value, str) else value or []):
        raise typer.BadParameter("found an empty text, expected an ID")
    return value


def service_command(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command whose first parameter is the service: adds the options that name it.

    Ends the command with the exit code of an error, and prints it.
    """
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()

    def run(**given: Any) -> None:
        way = ConnectionOptions(given.pop("url"), given.pop("token_file"), given.pop("settings"))
        with service_errors():
            command(way.service(), **given)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *_SERVICE_OPTIONS)]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def user() -> str:
    """Return the name of the user in the system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "unknown"


COMPLETION_TIMEOUT_SECONDS = 1.0
"""Seconds."""


def connection_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return connection IDs that begin like this, without those already given; none if the service fails."""
    given = context.params
    way = ConnectionOptions(_text(given.get("url")), _path(given.get("token_file")), _path(given.get("settings")))
    try:
        found = way.service(COMPLETION_TIMEOUT_SECONDS).items("connections", **{"ids-only": "true"})
    except (RequestFailed, SettingsError):
        return []
    there = given.get("connections") or ()
    return [each for each in found if isinstance(each, str) and each.startswith(incomplete) and each not in there]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _path(value: Any) -> Path | None:
    return Path(value) if value else None
