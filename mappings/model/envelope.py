"""An envelope: headers and payload, as a broker carries them.

The headers are the transport's own (user properties, table headers, record headers, `mqtt.topic` and its like), text to
text. The payload is whatever bytes the broker brought. What they mean is a codec's business.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Envelope(msgspec.Struct, frozen=True):
    """A struct, because nothing else is made so often."""

    payload: bytes
    headers: Mapping[str, str] = {}

    def header(self, name: str) -> str | None:
        """The header of this name in any spelling of its case, or None."""
        found = self.headers.get(name)
        if found is not None:
            return found
        wanted = name.lower()
        return next((value for key, value in self.headers.items() if key.lower() == wanted), None)
