"""Text as MQTT carries it.

MQTT 5 §1.5.4: up to 65535 bytes of UTF-8, never a null character. Control characters and Unicode's non-characters are
allowed to be refused, and Mosquitto ends the whole link over one of them. Such a message, sent again after each reconnect,
would keep a connection down for ever; so it is refused here.
"""

from __future__ import annotations

import re

MOST_BYTES = 65535
"""The longest text that an MQTT packet can carry, in bytes of UTF-8."""

_PLANES = "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(17))
_UNFIT = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_PLANES}]")


def text_fault(text: str) -> str | None:
    """What keeps this text from being sent in a packet, or None."""
    is_plain = text.isascii() and text.isprintable()
    if not is_plain and (unfit := _UNFIT.search(text)) is not None:
        return f"the character U+{ord(unfit[0]):04X} at position {unfit.start()}"
    if len(text) * 4 > MOST_BYTES and (size := len(text.encode())) > MOST_BYTES:
        return f"{size} bytes"
    return None
