"""Prints the coverage that `make coverage` has measured, by package and folder.

It also lists the files with the most lines that were not executed.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILES = 20
"""The number of files in the list."""


class Coverage(NamedTuple):
    """The number of lines and branches, and how many of them were executed."""

    lines: int = 0
    executed: int = 0
    branches: int = 0
    taken: int = 0

    def __add__(self, other: object) -> Coverage:
        assert isinstance(other, Coverage)
        return Coverage(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def __str__(self) -> str:
        return f"{_percent(self.executed, self.lines)} {_percent(self.taken, self.branches)} {self.lines:>7,}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.1f} %" if whole else "       –"


def of_files(report: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, Coverage]:
    """The coverage of each file, from the `files` of `coverage json`."""
    return {
        name: Coverage(
            found["num_statements"], found["covered_lines"], found["num_branches"], found["covered_branches"]
        )
        for name, found in ((name, file["summary"]) for name, file in report.items())
    }


def by_folder(files: Mapping[str, Coverage]) -> dict[str, Coverage]:
    """The sums of each package and each folder."""
    found: defaultdict[str, Coverage] = defaultdict(Coverage)
    for name, seen in files.items():
        for folder in list(Path(name).parents)[:-1]:
            found[str(folder)] += seen
    return dict(sorted(found.items()))


def main(path: str) -> int:
    files = of_files(json.loads(Path(path).read_text(encoding="utf-8"))["files"])
    print(f"{'':40}    lines branches   of lines")
    for name, seen in by_folder(files).items():
        print(f"{name:40} {seen}")
    print("\nmost lines not executed:")
    for name, seen in sorted(files.items(), key=lambda item: item[1].executed - item[1].lines)[:FILES]:
        print(f"{name:56} {seen}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
