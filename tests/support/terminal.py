"""Programs that are told that they talk to a terminal, though they do not: not every machine has terminals to give away.

command = [*at_terminal("connectivity"), "connections", "list"]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_TOLD = """
import os, runpy, sys
os.isatty = lambda place: True
for stream in (sys.stdin, sys.stdout, sys.stderr):
    stream.isatty = lambda: True
module = sys.argv.pop(1)
sys.argv[0] = module
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def at_terminal(module: str) -> Sequence[str]:
    """How to start a module as a program that takes its three streams for a terminal."""
    return sys.executable, "-c", _TOLD, module
