"""An envelope: headers and payload, as a broker transports them.

The headers are the transport's own (user properties, table headers, record headers, `mqtt.topic` etc.), text to text. A
codec decodes the payload.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


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
