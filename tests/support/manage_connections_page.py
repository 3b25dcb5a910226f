"""The files and commands on the page about managing connections."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "how-to" / "manage-connections.md"


def walk() -> tuple[dict[str, str], list[str]]:
    """Return the files and the command lines of its steps."""
    section = PAGE.read_text(encoding="utf-8").split("## Steps", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    files = {f"{name}.{kind}": text for name in ("lamps", "message") for kind, text in blocks if kind != "console"}
    lines = [line for kind, text in blocks if kind == "console" for line in text.splitlines()]
    return files, [line.removeprefix("$ connectivity ") for line in lines]
