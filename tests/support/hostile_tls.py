"""The server's side of TLS 1.3, which asks for changes of keys as often as wanted and reads no answers.

Its records are made here (RFC 8446, 4.6.3 and 7.2), because the libraries do not send them on request.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tests.support.brokers.mosquitto import Certificates

_UPDATE_REQUESTED = bytes([24, 0, 0, 1, 1])
_HANDSHAKE, _DATA = 22, 23
_SECRET = "SERVER_TRAFFIC_SECRET_0"


class HostileTlsServer:
    """One connection of the server; `folder` gets the log of its keys."""

    def __init__(self, certificates: Certificates, folder: Path) -> None:
        self._log = folder / "keys.log"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        context.num_tickets = 0
        context.keylog_filename = str(self._log)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._secret = b""

    def answer(self, received: bytes) -> bytes:
        """Return the answer to bytes of the handshake."""
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            assert self._tls.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
            (line,) = [line for line in self._log.read_text("ascii").splitlines() if line.startswith(_SECRET)]
            self._secret = bytes.fromhex(line.split()[2])
        return self._outgoing.read()

    @property
    def is_established(self) -> bool:
        return bool(self._secret)

    def key_changes(self, number: int) -> bytes:
        """Return so many changes of keys, each of which asks for one in return."""
        return b"".join(self._key_change() for _ in range(number))

    def _key_change(self) -> bytes:
        content = bytes([*_UPDATE_REQUESTED, _HANDSHAKE])
        header = bytes([_DATA, 3, 3]) + (len(content) + 16).to_bytes(2, "big")
        key, nonce = self._expand("key", 32), self._expand("iv", 12)
        # Each key is used for its first record only, whose number is 0.
        self._secret = self._expand("traffic upd", 48)
        return header + AESGCM(key).encrypt(nonce, content, header)

    def _expand(self, label: str, length: int) -> bytes:
        name = f"tls13 {label}".encode()
        info = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(SHA384(), length, info).derive(self._secret)
