"""Runs programs as if their streams were a terminal, because some machines have no pseudo-terminals.

command = [*at_terminal("connectivity"), "connections", "list"]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_PROGRAM = """
import os, runpy, sys
os.isatty = lambda place: True
for stream in (sys.stdin, sys.stdout, sys.stderr):
    stream.isatty = lambda: True
module = sys.argv.pop(1)
sys.argv[0] = module
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def at_terminal(module: str) -> Sequence[str]:
    """Return the command that runs a module whose three streams look like a terminal."""
    return sys.executable, "-c", _PROGRAM, module
