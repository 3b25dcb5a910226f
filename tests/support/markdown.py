"""Parts of a Markdown page: its fenced blocks, its prose, the anchors of its headings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"\n]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block; its title is empty if it has none."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page. Raises AssertionError if one is not recognized."""
    text = page.read_text(encoding="utf-8")
    found = [Block(*block) for block in _FENCE.findall(text)]
    assert len(found) * 2 == len(re.findall("^```", text, re.MULTILINE)), f"{page.name}: a block is not recognized"
    return found


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, in the format of code hosts."""
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}
