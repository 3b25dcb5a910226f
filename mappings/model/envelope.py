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

_CHARSET = re.compile(r";\s*charset=(?P<name>[^;]*)", re.IGNORECASE)

UTF_8 = "utf-8"

_ESCAPE = 0x1B
"""The byte by which text in ISO-2022-JP and ISO-2022-KR switches between character sets."""

_NO_CHARSETS = frozenset(
    {"idna", "mbcs", "oem", "palmos", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"}
)
"""Encodings of Python that are no charsets.

Decoding punycode takes time in proportion to the square of the length.
"""


class Envelope(msgspec.Struct, frozen=True):
    """A struct, because it is the most frequently created object.

    `has_own_id`: its correlation ID, if it has one, was set for this message: it is neither generated nor that of a socket.
    """

    payload: bytes
    headers: Mapping[str, str] = {}
    has_own_id: bool = True

    def header(self, name: str) -> str | None:
        """Return the header with this name, ignoring case; None if it is missing."""
        found = self.headers.get(name)
        if found is not None:
            return found
        wanted, length = name.lower(), len(name)
        for key, value in self.headers.items():
            if len(key) == length and key.lower() == wanted:
                return value
        return None

    def utf8(self) -> bytes:
        """Return a payload of text in UTF-8, converted from the charset of its content type."""
        payload = self.payload
        # As in `to_utf8`, without looking for the header, which most text does not need.
        is_plain = payload.isascii() and payload.find(0) < 0 and payload.find(_ESCAPE) < 0
        if is_plain or (content_type := self.header("content-type")) is None:
            return payload
        return to_utf8(payload, parse_content_type(content_type))


class ContentType(NamedTuple):
    """A parsed content type: the media type in lower case, and the charset of text."""

    media_type: str
    charset: str = UTF_8

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
        charset = codecs.lookup(found["name"].strip().strip('"')).name
    except (LookupError, ValueError):
        return ContentType(media_type)
    return ContentType(media_type) if charset in _NO_CHARSETS else ContentType(media_type, charset)


def to_utf8(payload: bytes, content_type: ContentType) -> bytes:
    """Convert text from the charset of its content type; bytes that are no such text stay as they are.

    Most charsets have the characters of ASCII at the same places, and text in the others has bytes beyond those, zeros or
    escapes: a text in ASCII with their name is no text of theirs.
    """
    is_plain = payload.isascii() and payload.find(0) < 0 and payload.find(_ESCAPE) < 0
    if content_type.charset == UTF_8 or is_plain:
        return payload
    try:
        return payload.decode(content_type.charset).encode()
    except (UnicodeError, LookupError):
        return payload


def from_utf8(payload: bytes, content_type: ContentType) -> bytes:
    """Convert text to the charset of its content type.

    Text that the charset cannot express stays as it is.
    """
    if content_type.charset == UTF_8:
        return payload
    try:
        return payload.decode().encode(content_type.charset)
    except (UnicodeError, LookupError):
        return payload
