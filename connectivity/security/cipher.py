"""Authenticated encryption of short texts: AES-GCM with a random nonce before the ciphertext."""

from __future__ import annotations

import os

_NONCE_BYTES = 12
_KEY_BITS = 256


class Cipher:
    """Seals and opens with one key. Its library takes 7 MB, and is loaded with the first cipher."""

    def __init__(self, key: bytes | None = None) -> None:
        """Without a key a new one is made."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aead = AESGCM(key or AESGCM.generate_key(_KEY_BITS))

    def seal(self, plain: bytes, bound: bytes) -> bytes:
        """Return nonce and ciphertext; they open with the same `bound` only."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, plain, bound)

    def open(self, sealed: bytes, bound: bytes) -> bytes:
        """Return the plain bytes. Raises ValueError if they were altered, or bound to something else."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except InvalidTag as error:
            raise ValueError("found a ciphertext that was changed, or copied from another place") from error
