"""Writes the generated pages of the documentation, or with `--check` compares them with the files.

Each page is generated from the code that declares its facts, so that it cannot differ from the code.
"""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from tools.docs.api import api_page
from tools.docs.cli import cli_page
from tools.docs.connections import reference_page
from tools.docs.mappers import mappings_page
from tools.docs.metrics import metrics_page
from tools.docs.placeholders import placeholders_page
from tools.docs.schemas import schema_files
from tools.docs.settings import settings_page
from tools.docs.transports import broker_pages

ROOT = Path(__file__).parents[2]


class Page(NamedTuple):
    """A file under `docs`, the function that generates it, and its content."""

    path: str
    source: str
    content: str

    def text(self) -> str:
        return self.content.rstrip("\n") + "\n"


PAGES = (
    Page("docs/reference/api.md", "tools.docs.api.api_page", api_page()),
    Page("docs/reference/connections.md", "tools.docs.connections.reference_page", reference_page()),
    Page("docs/reference/cli.md", "tools.docs.cli.cli_page", cli_page()),
    Page("docs/reference/settings.md", "tools.docs.settings.settings_page", settings_page()),
    Page("docs/reference/metrics.md", "tools.docs.metrics.metrics_page", metrics_page()),
    Page("docs/reference/placeholders.md", "tools.docs.placeholders.placeholders_page", placeholders_page()),
    Page("docs/reference/mappings.md", "tools.docs.mappers.mappings_page", mappings_page()),
    *(Page(f"docs/reference/{file}", "tools.docs.transports", text) for file, text in broker_pages().items()),
    *(Page(f"docs/{file}", "tools.docs.schemas", text) for file, text in schema_files().items()),
)


def difference(page: Page) -> str:
    """The diff between the file and the page; empty if they are equal."""
    file = ROOT / page.path
    found = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = unified_diff(found.splitlines(), page.text().splitlines(), page.path, page.source, lineterm="")
    return "\n".join(lines)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "--check", action="store_true", help="write nothing; the exit code is 1 if a page is outdated"
    )
    if arguments.parse_args().check:
        old = [text for page in PAGES if (text := difference(page))]
        if old:
            print("\n".join(old), "\n\nGenerated pages are outdated: run `make docs`.", file=sys.stderr)
        return 1 if old else 0
    for page in PAGES:
        (ROOT / page.path).parent.mkdir(exist_ok=True)
        (ROOT / page.path).write_text(page.text(), encoding="utf-8")
        print(page.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
