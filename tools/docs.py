"""The generated pages: written anew, or with `--check` compared with what is there.

A page is printed from the place where its facts are declared, so that it cannot tell something else.
"""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from pathlib import Path
from typing import NamedTuple

from connectivity.api.page import api_page
from connectivity.cli.reference import cli_page
from connectivity.metrics import metrics_page
from connectivity.settings_page import settings_page
from connectivity.spec import broker_pages, reference_page
from mappings.mappers_page import mappings_page
from mappings.reference import placeholders_page

ROOT = Path(__file__).parent.parent


class Page(NamedTuple):
    """A file under `docs`, where it comes from in words, and its Markdown."""

    path: str
    source: str
    markdown: str

    def text(self) -> str:
        return self.markdown.rstrip("\n") + "\n"


PAGES = (
    Page("docs/api.md", "connectivity.api.page.api_page", api_page()),
    Page("docs/connections.md", "connectivity.spec.reference_page", reference_page()),
    Page("docs/cli.md", "connectivity.cli.reference.cli_page", cli_page()),
    Page("docs/settings.md", "connectivity.settings_page.settings_page", settings_page()),
    Page("docs/metrics.md", "connectivity.metrics.metrics_page", metrics_page()),
    Page("docs/placeholders.md", "mappings.reference.placeholders_page", placeholders_page()),
    Page("docs/mappings.md", "mappings.mappers_page.mappings_page", mappings_page()),
    *(Page(f"docs/{file}", "connectivity.spec.broker_pages", text) for file, text in broker_pages().items()),
)


def difference(page: Page) -> str:
    """What the file lacks, as a diff; empty where it is as it should be."""
    file = ROOT / page.path
    found = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = unified_diff(found.splitlines(), page.text().splitlines(), page.path, page.source, lineterm="")
    return "\n".join(lines)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="write nothing; end with 1 where a page is old")
    if arguments.parse_args().check:
        old = [text for page in PAGES if (text := difference(page))]
        if old:
            print("\n".join(old), "\n\nGenerated pages are older than their source: run `make docs`.", file=sys.stderr)
        return 1 if old else 0
    for page in PAGES:
        (ROOT / page.path).write_text(page.text(), encoding="utf-8")
        print(page.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
