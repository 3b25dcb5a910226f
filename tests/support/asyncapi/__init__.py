"""The official parser of AsyncAPI, which validates documents; `tools/asyncapi/install` installs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.paths import ROOT

_INSTALLED = ROOT / ".run" / "asyncapi" / "node_modules"


class ParserMissing(RuntimeError):
    """Node or the parser is not installed; the message has the command that installs it."""


def errors_of(files: Iterable[Path]) -> Mapping[str, list[str]]:
    """Return the errors that the parser finds in each file. Raises ParserMissing."""
    node = shutil.which("node")
    if node is None or not _INSTALLED.is_dir():
        raise ParserMissing("no Node, or no parser of AsyncAPI; `make install` brings them")
    script = Path(__file__).with_name("parse.js")
    environment = {**os.environ, "NODE_PATH": str(_INSTALLED)}
    ended = subprocess.run([node, script, *files], env=environment, capture_output=True, check=True, text=True)
    found: Mapping[str, list[str]] = json.loads(ended.stdout)
    return found
