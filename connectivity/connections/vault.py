"""Encrypts the secrets of stored connection documents: AES-256-GCM, one text for each secret.

It seals literal secrets: the password in `uri`, `credentials.key` and `credentials.password`, `password` and `privateKey`
of `sshTunnel.credentials`, and options in `specificConfig` with secret names. References (`${env:…}`, `${file:…}`) stay; a
text that mixes both is sealed as a whole. A sealed text is `sealed:v1:<key id>:<base64url of nonce and ciphertext>`, with a
random nonce; connection ID, path, version and key ID are authenticated, so it opens nowhere else. Shown secrets are `*****`;
a document that comes back with that keeps the stored secret (`Vault.keep`), but only for the destination it was sent to so
far, verified as so far: otherwise a writer without read access could have it sent to another host.
`connectivity.maintenance.keyring` supplies the keys.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from connectivity.config.problems import json_path
from connectivity.connections.secret_references import REFERENCE
from connectivity.errors import AlteredSecret, DefinitionError, Problem, UnknownKey
from connectivity.security.cipher import Cipher
from connectivity.security.keys import key_id
from connectivity.security.uri import END_OF_USER, MASK, is_secret_option, mask_uri, parse_uri
from mappings.model.json_pointer import MISSING, get, put

Document = Mapping[str, Any]
"""A connection as JSON has it."""

_FIELDS = (
    ("credentials", "key"),
    ("credentials", "password"),
    ("sshTunnel", "credentials", "password"),
    ("sshTunnel", "credentials", "privateKey"),
)
_SENT = frozenset({"uri", "credentials.password", "sshTunnel.credentials.password"})
"""The secrets that are sent to a server. A private key is never sent."""

_SEALED = re.compile(r"sealed:v1:(?P<key>[0-9a-f]{16}):(?P<text>[A-Za-z0-9_-]+)")
_REFERENCES = re.compile(rf"(?:{REFERENCE.pattern.replace('?P<kind>', '').replace('?P<name>', '')})+")
_AUTHORITY = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://(?P<authority>[^/?#]*)")

Change = Callable[[str, str], str]
"""Receives the path of a literal secret and the secret, and returns the replacement."""


class ResealedDocument(NamedTuple):
    """A document under the newest key, and how many of its secrets changed their key."""

    document: dict[str, Any]
    changed: int


class Vault:
    """Seals and opens the secrets of documents. The first key seals, all of them open."""

    def __init__(self, keys: Sequence[bytes] = (), make_key: Callable[[], bytes] | None = None) -> None:
        """`make_key` is called once, at the first secret that is to be sealed while there is no key."""
        self._newest = key_id(keys[0]) if keys else None
        self._ciphers = {key_id(key): Cipher(key) for key in keys}
        self._make_key = make_key

    def __repr__(self) -> str:
        return f"Vault({', '.join(self._ciphers) or 'without keys'})"

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of all keys; the first one seals."""
        return tuple(self._ciphers)

    def seal(self, document: Document) -> dict[str, Any]:
        """Return the document with sealed secrets. It has an `id` and no masks.

        Raises UnknownKey for a document with secrets if there is no key and none can be created.
        """
        return _rewritten(document, lambda path, text: self._seal(document["id"], path, text))

    def unseal(self, document: Document) -> dict[str, Any]:
        """Return the document with opened secrets. Raises UnknownKey and AlteredSecret."""
        return _rewritten(document, lambda path, text: self._open(document["id"], path, text))

    def reseal(self, document: Document) -> ResealedDocument:
        """The sealed document with all its secrets under the newest key. Raises UnknownKey and AlteredSecret."""
        changed = 0

        def reseal_text(path: str, text: str) -> str:
            nonlocal changed
            if (match := _SEALED.fullmatch(text)) is None or match["key"] == self._newest:
                return text
            changed += 1
            return self._seal(document["id"], path, self._open(document["id"], path, text))

        return ResealedDocument(_rewritten(document, reseal_text), changed)

    def keep(self, document: Document, stored: Document | None) -> dict[str, Any]:
        """Return the document with stored secrets in the place of masks.

        `stored` is sealed; None: there is none. Raises DefinitionError if nothing is stored, or if a password would be sent
        to another destination, or to one that is verified otherwise; UnknownKey and AlteredSecret for a needed secret that
        cannot be opened.
        """
        kept = _secrets(stored) if stored is not None else {}
        problems: list[Problem] = []

        def keep(path: str, text: str) -> str:
            if text != MASK:
                return text
            if stored is None or path not in kept:
                problems.append(
                    Problem(
                        path,
                        f"{MASK}, but the service has stored no secret here",
                        "the secret itself, or a reference to it",
                    )
                )
            elif path in _SENT and _destination(document, path) != _destination(stored, path):
                expected = "the password itself or a reference, because its server or the TLS verification has changed"
                problems.append(Problem(path, f"{MASK} in place of a password", expected))
            else:
                return self._open(stored["id"], path, kept[path])
            return text

        complete = _rewritten(document, keep)
        if problems:
            raise DefinitionError(problems)
        return complete

    def _seal(self, connection: str, path: str, text: str) -> str:
        if self._newest is None and self._make_key is not None:
            made = self._make_key()
            self._newest = key_id(made)
            self._ciphers = {self._newest: Cipher(made), **self._ciphers}
        if self._newest is None:
            raise UnknownKey(connection, path, "no encryption key, expected secrets.key or secrets.key_file")
        bound = _associated_data(self._newest, connection, path)
        sealed = self._ciphers[self._newest].seal(text.encode("utf-8"), bound)
        return f"sealed:v1:{self._newest}:{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"

    def _open(self, connection: str, path: str, text: str) -> str:
        match = _SEALED.fullmatch(text)
        if match is None:
            return text
        cipher = self._ciphers.get(match["key"])
        if cipher is None:
            known = ", ".join(self._ciphers) or "none"
            raise UnknownKey(
                connection,
                path,
                f"a secret that was encrypted with key {match['key']}, expected one of the keys: {known}",
            )
        try:
            raw = base64.b64decode(match["text"] + "=" * (-len(match["text"]) % 4), b"-_", validate=True)
            bound = _associated_data(match["key"], connection, path)
            return cipher.open(raw, bound).decode("utf-8")
        except ValueError:
            raise AlteredSecret(connection, path, "a secret that was changed or moved after its encryption") from None


def mask(document: Document) -> dict[str, Any]:
    """Return the document with `*****` for each literal or sealed secret. References are not secrets."""
    shown = _rewritten(document, lambda _path, _text: MASK, unread=lambda _value: MASK)
    uri = shown.get("uri")
    if isinstance(uri, str) and not _REFERENCES.fullmatch(uri) and not _is_address(uri):
        # Any part of it may be a secret.
        shown["uri"] = mask_uri(uri)
    return shown


def _is_address(uri: str) -> bool:
    try:
        # A reference may replace a port too.
        parse_uri(_without_references(uri, "1"))
    except ValueError:
        return False
    return True


def _associated_data(key: str, connection: str, path: str) -> bytes:
    """Return the associated data of a sealed text; it opens nowhere else."""
    return json.dumps(["sealed:v1", key, connection, path]).encode()


def _secrets(document: Document) -> dict[str, str]:
    """Return every literal secret by its path."""
    found: dict[str, str] = {}

    def note(path: str, text: str) -> str:
        found[path] = text
        return text

    _rewritten(document, note)
    return found


def _rewritten(
    document: Document, change: Change, unread: Callable[[Any], Any] = lambda value: value
) -> dict[str, Any]:
    """Return a copy with each literal secret changed; `unread` gets non-texts in places of secrets."""

    def changed(path: str, value: Any) -> Any:
        # Validation refuses a secret that is not text.
        if not isinstance(value, str):
            return value if value is None else unread(value)
        return value if _REFERENCES.fullmatch(value) else change(path, value)

    copy: dict[str, Any] = dict(document)
    if "uri" in copy:
        uri = copy["uri"]
        copy["uri"] = _changed_uri(uri, changed) if isinstance(uri, str) else unread(uri)
    for field in _FIELDS:
        if (value := get(copy, field)) is not MISSING:
            copy = put(copy, field, changed(json_path(*field), value))
    options = copy.get("specificConfig")
    if isinstance(options, Mapping):
        copy["specificConfig"] = {
            name: changed(json_path("specificConfig", name), value) if is_secret_option(name) else value
            for name, value in options.items()
        }
    return copy


def _changed_uri(uri: str, changed: Callable[[str, str], str]) -> str:
    span = _password_span(uri)
    return uri if span is None else uri[: span[0]] + changed("uri", uri[slice(*span)]) + uri[span[1] :]


def _without_references(uri: str, filler: str = "") -> str:
    """Return the text without references, which contain colons and slashes; by default of the same length."""
    return REFERENCE.sub(lambda match: filler or "x" * len(match[0]), uri)


def _password_span(uri: str) -> tuple[int, int] | None:
    """Return where the password of an address begins and ends.

    Without a colon, all user information is the password.
    """
    filled = _without_references(uri)
    authority = _AUTHORITY.match(filled)
    if authority is None or "@" not in authority["authority"]:
        return None
    start = authority.start("authority")
    end = start + authority["authority"].rindex("@")
    if _SEALED.fullmatch(uri, start, end):
        return start, end
    colon = END_OF_USER.search(filled, start, end)
    return (colon.end() if colon else start), end


def _destination(document: Document, path: str) -> object:
    """Return the destination and user of the secret at this path, and how the destination is verified."""
    tunnel = document.get("sshTunnel")
    tunnel = tunnel if isinstance(tunnel, Mapping) else {}
    hop = tunnel.get("uri"), tunnel.get("validateHost") is not False, tunnel.get("knownHosts") or []
    if path.startswith("sshTunnel"):
        own = tunnel.get("credentials")
        return hop, own.get("username") if isinstance(own, Mapping) else None
    options = document.get("specificConfig")
    options = options if isinstance(options, Mapping) else {}
    verification = document.get("validateCertificates") is not False, document.get("ca")
    return (
        _endpoint(document.get("uri")),
        options.get("bootstrapServers"),
        options.get("saslMechanism"),
        verification,
        hop if tunnel.get("enabled") else None,
    )


def _endpoint(uri: object) -> object:
    """Scheme, user, host and port of an address."""
    if not isinstance(uri, str) or (authority := _AUTHORITY.match(_without_references(uri))) is None:
        return uri
    start, end = _password_span(uri) or (0, 0)
    return uri[:start], uri[end : authority.end()]
