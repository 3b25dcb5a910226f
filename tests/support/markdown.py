"""Parts of a Markdown page: its fenced blocks, its prose, the anchors of its headings."""

from __future__ import annotations

import re
from pathlib import Path

FENCE = re.compile(r"^```(\w*)(?: title=\"[^\"]+\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""Language and text of a fenced block, which may have a title."""

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
