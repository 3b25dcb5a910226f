"""The commands of a how-to guide as lists of words, for guides that need another platform."""

from __future__ import annotations

import shlex
from itertools import pairwise

from tests.support.markdown import blocks
from tests.support.recipe import HOW_TO, commands


def typed(page: str) -> list[list[str]]:
    """Return the words of each command on a page."""
    found = [block.text for block in blocks(HOW_TO / f"{page}.md") if block.language == "console"]
    return [shlex.split(command.text) for text in found for command in commands(text)]


def beginning(page: str, *words: str) -> list[list[str]]:
    """Return the rest of each command on a page that begins with these words."""
    return [command[len(words) :] for command in typed(page) if command[: len(words)] == list(words)]


def options(words: list[str], name: str) -> list[str]:
    """Return the values of an option."""
    return [value for option, value in pairwise(words) if option == f"--{name}"]
