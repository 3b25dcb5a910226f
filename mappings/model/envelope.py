"""An envelope: headers and payload, as a broker transports them; and content types.

The headers are the transport's own (user properties, table headers, record headers, `mqtt.topic` etc.), text to text. A
codec decodes the payload. A content type is `type/subtype` with parameters after semicolons. Without one, and for everything
that is neither text nor JSON, a payload is bytes (Ditto connections, external messages).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mappings.text_cache import cached_if_short

_CHARSET = re.compile(r";.?charset=(?P<name>[^;]*)$", re.IGNORECASE)


class Envelope(msgspec.Struct, frozen=True):
    """A struct, because it is the most frequently created object."""

    payload: bytes
    headers: Mapping[str, str] = {}

    def header(self, name: str) -> str | None:
        """Return the header with this name, ignoring case; None if it is missing."""
        found = self.headers.get(name)
        if found is not None:
            return found
        wanted = name.lower()
        return next((value for key, value in self.headers.items() if key.lower() == wanted), None)


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


@cached_if_short(256)
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
