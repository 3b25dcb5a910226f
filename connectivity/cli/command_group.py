"""A group of commands whose help shows flags as flags, and the exit codes of all commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

EXIT_CODES: Mapping[int, str] = {
    0: "the command succeeded; for `serve` and `pipeline run`: a signal stopped the command",
    1: "the command failed or was refused, or found problems or differences; for `serve`: the journal cannot be opened",
    2: "an argument, a file or a setting is invalid",
    3: "another process uses the data folder or writes the lake; for `connections apply --plan`: there are changes",
    4: "the token is missing, invalid, or lacks permission; for `serve`: another process uses the API's port; for "
    "`pipeline`: Spark is not available; an extra that the command needs is not installed",
    5: "the service cannot be reached; for `pipeline` and `backup`: journal and lake do not match",
    130: "Ctrl-C interrupted the command",
}
"""The exit codes of all commands."""

EXIT_CODES_NOTE = f"Exit codes: {'. '.join(f'{code}: {meaning}' for code, meaning in EXIT_CODES.items())}."


class _FlagCommand(TyperCommand):
    """A command whose flags have no placeholder of a value in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_placeholders(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Only paths, which are no `str`, may have bytes that are not UTF-8."""
        rest = super().parse_args(ctx, args)
        parameters: list[Any] = self.params
        for parameter in parameters:
            given = ctx.params.get(parameter.name)
            for text in given if isinstance(given, list | tuple) else (given,):
                if isinstance(text, str) and (part := _undecodable(text)):
                    raise typer.BadParameter(f"found {part!a}, expected UTF-8", ctx, parameter)
        return rest


class _FlagGroup(TyperGroup):
    """A group whose flags have no placeholder of a value in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_placeholders(super().get_params(ctx))


def _without_placeholders(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _undecodable(text: str) -> str:
    """Return the characters by which Python represents bytes of an argument that are not UTF-8."""
    return "".join(character for character in text if "\udc80" <= character <= "\udcff")


class CommandGroup(typer.Typer):
    """A group of commands; without a command, it shows its help."""

    def __init__(self, **options: Any) -> None:
        # The library's own traces would print local variables, secrets among them.
        super().__init__(cls=_FlagGroup, no_args_is_help=True, pretty_exceptions_enable=False, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=_FlagCommand, **options)
