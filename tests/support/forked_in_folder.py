"""Starts a forked program in the folder that the environment variable PWD names: a wrapper of `ForkedService`."""

from __future__ import annotations

import os
from collections.abc import Sequence


def install(_arguments: Sequence[str]) -> None:
    os.chdir(os.environ["PWD"])
