"""Certificates and keys in PEM, as far as the standard library reads them.

A client's key is passed to OpenSSL through a file in memory if the system has such files, else through a private temporary
file: the library takes keys by path only.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

_BLOCK = re.compile(r"-----BEGIN (?P<label>[A-Z0-9 ]+)-----(?P<body>[A-Za-z0-9+/=\s]*)-----END (?P=label)-----")


def pem_labels(text: str) -> list[str]:
    """Return the labels in a PEM text: `CERTIFICATE`, `PRIVATE KEY`, …; malformed blocks are left out."""
    return [match["label"] for match in _BLOCK.finditer(text) if _is_der_sequence(match["body"])]


def _is_der_sequence(body: str) -> bool:
    """Whether a PEM body is base64 of one ASN.1 sequence of the right length."""
    try:
        der = base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error:
        return False
    if len(der) < 2 or der[0] != 0x30:
        return False
    if der[1] < 0x80:
        return len(der) == 2 + der[1]
    size = der[1] & 0x7F
    return 0 < size <= 4 and len(der) == 2 + size + int.from_bytes(der[2 : 2 + size], "big")


def certificate_data(text: str) -> str:
    """Return PEM as the standard library takes it: in ASCII, so without the letters of names in comments."""
    return text.encode("ascii", "ignore").decode()


def is_certificates(text: str) -> bool:
    """Whether the text is one or more valid X.509 certificates in PEM, and nothing else."""
    if not pem_labels(text) or set(pem_labels(text)) != {"CERTIFICATE"} or len(pem_labels(text)) != text.count("BEGIN"):
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate_data(text))
    except (ssl.SSLError, ValueError):
        return False
    return True


def is_key(text: str, label: str) -> bool:
    """Whether the text is one PEM block with this label: `PRIVATE KEY` is PKCS#8, `PUBLIC KEY` X.509."""
    return pem_labels(text) == [label]


def is_certificate_with_key(certificate: str, key: str) -> bool:
    """Whether these are a certificate chain and its unencrypted private key, both PEM."""
    try:
        load_client_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key)
    except ValueError:
        return False
    return True


def load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Put a client's certificate chain and its unencrypted key into `context`.

    Raises ValueError, without any part of either, if they cannot be read or do not match.
    """
    try:
        with _readable_path(f"{certificate}\n{key}\n".encode()) as path:
            context.load_cert_chain(path, password=_no_password)
    except (ssl.SSLError, ValueError, UnicodeError):
        raise ValueError("a certificate chain and the private key that belongs to it") from None


def expiry_of(certificate: str) -> datetime:
    """Return the end of the validity of the first certificate in a PEM text. Raises ValueError."""
    # The library takes 7 MB.
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def _no_password() -> str:
    """OpenSSL would otherwise ask for the password of an encrypted key at the terminal."""
    raise ValueError


@contextmanager
def _readable_path(content: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "client.pem")
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield str(path)
