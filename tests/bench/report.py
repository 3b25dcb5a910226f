"""Figures and their report: a table on the terminal, and in Markdown for the page of performance."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Figure:
    """A row: the measurement, the figure, the bare client's figure, the goal, and whether it is met."""

    name: str
    measured: str
    bare: str
    goal: str
    is_met: bool
    note: str = ""

    def row(self) -> str:
        cells = (self.name, self.measured, self.bare, self.goal, "yes" if self.is_met else "**no**", self.note)
        return "| " + " | ".join(cells) + " |"


HEAD = "| what | measured | bare client | goal | met | remarks |\n|---|---|---|---|---|---|"


def machine() -> str:
    """A description of the machine in one line."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in _read("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{psutil.cpu_count()} cores ({model}), {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _read(path: str) -> str:
    file = Path(path)
    return file.read_text(encoding="utf-8") if file.exists() else ""
