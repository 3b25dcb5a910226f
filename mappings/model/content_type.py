"""Content types: whether a payload is text or JSON, and its charset.

A content type is `type/subtype` with parameters after semicolons. Without one, and for everything that is neither text nor
JSON, a payload is bytes. Ditto connections, external messages.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import NamedTuple

_CHARSET = re.compile(r";.?charset=(?P<name>[^;]*)$", re.IGNORECASE)


class ContentType(NamedTuple):
    """A parsed content type: the media type in lower case, and the charset of text."""

    media_type: str
    charset: str = "utf-8"

    @property
    def is_json(self) -> bool:
        return self.media_type == "application/json" or self.media_type.endswith("+json")

    @property
    def is_text(self) -> bool:
        return self.media_type.startswith("text/")


@lru_cache(maxsize=256)
def parse_content_type(text: str) -> ContentType:
    """Parse a content type. An unknown charset is read as UTF-8."""
    media_type = text.partition(";")[0].strip().lower()
    found = _CHARSET.search(text)
    if found is None:
        return ContentType(media_type)
    try:
        return ContentType(media_type, codecs.lookup(found["name"].strip().strip('"')).name)
    except (LookupError, ValueError):
        return ContentType(media_type)
