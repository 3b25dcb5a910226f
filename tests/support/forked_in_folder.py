"""Starts a forked program in the folder of the environment variable PWD: a wrapper of `ForkedService`."""

from __future__ import annotations

import os
from collections.abc import Sequence


def install(_arguments: Sequence[str]) -> None:
    os.chdir(os.environ["PWD"])
