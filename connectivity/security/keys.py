from __future__ import annotations

import base64
import hashlib
import os

KEY_BYTES = 32
EXPECTED_KEY = f"{KEY_BYTES} bytes in base64, as `connectivity secrets new-key` prints them"


def new_key() -> bytes:
    """A fresh key."""
    return os.urandom(KEY_BYTES)


def key_text(key: bytes) -> str:
    """A key as settings and key files have it."""
    return base64.b64encode(key).decode()


def read_key(text: str) -> bytes:
    """Return the key in a text. Raises ValueError that says what was expected, and nothing of the text."""
    try:
        key = base64.b64decode(text.strip().replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(EXPECTED_KEY)
    return key


def key_id(key: bytes) -> str:
    """The name of a key: 16 hexadecimal digits that say nothing of it."""
    return hashlib.sha256(b"connectivity key id\0" + key).hexdigest()[:16]
