"""The commands that the documentation page about operating walks through."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

OPERATING = ROOT / "docs" / "how-to" / "operating.md"


def walk() -> tuple[dict[str, str], list[str]]:
    """The files and the lines of the five minutes that the page on operating describes."""
    section = OPERATING.read_text(encoding="utf-8").split("## The command line", 1)[1].split("### Changing", 1)[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    files = {f"{name}.{kind}": text for name in ("lamps", "message") for kind, text in blocks if kind != "console"}
    lines = [line for kind, text in blocks if kind == "console" for line in text.splitlines()]
    return files, [line.removeprefix("$ connectivity ") for line in lines]
