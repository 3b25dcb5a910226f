"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import typer.main
import typer.testing


@pytest.fixture(scope="session", autouse=True)
def _commands_made_once() -> Iterator[None]:
    """Build Typer's tree of commands once, as each call would take longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield
