"""Draws pictures of the demo's output: `python -m tools.docs.pictures`.

It runs the demo, which takes about two minutes, and writes parts of its output as SVG into `docs/pictures`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 100

SCENES = {
    "demo": ("devices report on MQTT", "a back end on AMQP replays"),
    "demo-end": ("the view of an operator", "Summary"),
}
"""The parts of the output in each picture, by texts in their titles."""

_FONTS = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)
"""Fonts that a viewer would download."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def main() -> int:
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    ran = subprocess.run([sys.executable, "-m", "examples.demo"], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    if ran.returncode:
        return ran.returncode
    PICTURES.mkdir(exist_ok=True)
    parts = scenes(ran.stdout.decode())
    for name, titles in SCENES.items():
        lines = [line for title in titles for line in parts_of(parts, title)]
        (PICTURES / f"{name}.svg").write_text(picture(lines), encoding="utf-8")
    return 0


def scenes(output: str) -> list[list[str]]:
    """Return the paragraphs of the output; the first line of each is its title."""
    return [part.strip("\n").splitlines() for part in re.split(r"\n(?:\x1b\[0m)?\n", output) if part.strip()]


def parts_of(parts: list[list[str]], title: str) -> list[str]:
    """Return the lines of the part with this title, and an empty line.

    Raises LookupError for an unknown title.
    """
    for part in parts:
        if title in _ANSI.sub("", part[0]):
            return [*part, ""]
    raise LookupError(f"the demo prints no part titled '{title}'")


def picture(lines: list[str]) -> str:
    """Return lines of a terminal as SVG, without references to other files."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ellipsis")
    return console.export_svg(title="make demo", code_format=_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="demo")


if __name__ == "__main__":
    sys.exit(main())
