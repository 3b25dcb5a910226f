"""Entity tags: what `if-match` and `if-none-match` name (HTTP conditional requests), over brokers and over HTTP alike."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TAG: Final = re.compile(r'(W/)?("[^"*]*")')
_TAGS: Final = re.compile(r'\s*(?:W/)?"[^"*]*"\s*(?:,\s*(?:W/)?"[^"*]*"\s*)*')


class Tags(NamedTuple):
    """The value of `if-match` or `if-none-match`: any tag at all, or these, each with its mark of weakness."""

    is_any: bool
    tags: tuple[tuple[bool, str], ...] = ()

    def match_strongly(self, tag: str) -> bool:
        return self.is_any or (False, tag) in self.tags

    def match_weakly(self, tag: str) -> bool:
        return self.is_any or any(tag == known for _, known in self.tags)


def parse_tags(text: str) -> Tags | None:
    """The tags that a header names: `*`, or one or more of `"…"` and `W/"…"`. None for anything else."""
    if text.strip() == "*":
        return Tags(True)
    if _TAGS.fullmatch(text) is None:
        return None
    return Tags(False, tuple((bool(weak), tag) for weak, tag in _TAG.findall(text)))
