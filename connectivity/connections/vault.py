"""Secrets that documents bring along, encrypted while they rest: AES-256-GCM, one text for each secret.

Sealed are the literal secrets of a connection document: the password in `uri` (its other parts stay readable),
`credentials.key` and `credentials.password`, `password` and `privateKey` of `sshTunnel.credentials`, and options in
`specificConfig` whose names say that they are secret. References (`${env:…}`, `${file:…}`) are no secrets and stay; a text
that mixes both is sealed as a whole.

A sealed text reads `sealed:v1:<key id>:<base64url of nonce and ciphertext>`. Its nonce is random and used once. Connection
id, path, version and key id are bound to it, so that one moved to another field or another connection does not open. A key
id is made of the key, so nobody has to name keys.

What is shown has `*****` in a secret's place, and a document that comes back with that keeps the stored secret
(`Vault.keep`). A password is kept only for where it was sent so far: otherwise whoever may write a document, and may not
read its password, would have it sent to a host of his own.

Everything here is pure but for the one call that makes a first key; where keys come from is said in
`connectivity.maintenance.keyring`.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from connectivity.config.problems import json_path
from connectivity.connections.secret_references import REFERENCE
from connectivity.errors import AlteredSecret, DefinitionError, Problem, UnknownKey
from connectivity.security.keys import key_id
from connectivity.security.uri import END_OF_USER, MASK, is_secret_option, mask_uri, parse_uri

Document = Mapping[str, Any]
"""A connection as JSON has it."""

_FIELDS = (
    ("credentials", "key"),
    ("credentials", "password"),
    ("sshTunnel", "credentials", "password"),
    ("sshTunnel", "credentials", "privateKey"),
)
_SENT = frozenset({"uri", "credentials.password", "sshTunnel.credentials.password"})
"""The secrets that the other side gets to see. A private key never leaves."""

_NONCE_BYTES = 12
_SEALED = re.compile(r"sealed:v1:(?P<key>[0-9a-f]{16}):(?P<text>[A-Za-z0-9_-]+)")
_REFERENCES = re.compile(rf"(?:{REFERENCE.pattern.replace('?P<kind>', '').replace('?P<name>', '')})+")
_AUTHORITY = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://(?P<authority>[^/?#]*)")

Change = Callable[[str, str], str]
"""Takes a literal secret's path and the secret; what it returns stands in its place."""


class ResealedDocument(NamedTuple):
    """A document under the newest key, and how many of its secrets changed their key."""

    document: dict[str, Any]
    changed: int


class Vault:
    """Seals and opens the secrets of documents. The first key seals, all of them open."""

    def __init__(self, keys: Sequence[bytes] = (), make_key: Callable[[], bytes] | None = None) -> None:
        """`make_key` is called once, at the first secret that is to be sealed while there is no key."""
        self._newest = key_id(keys[0]) if keys else None
        self._ciphers = {key_id(key): AESGCM(key) for key in keys}
        self._make_key = make_key

    def __repr__(self) -> str:
        return f"Vault({', '.join(self._ciphers) or 'without keys'})"

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of all keys; the first one seals."""
        return tuple(self._ciphers)

    def seal(self, document: Document) -> dict[str, Any]:
        """The document as it may rest. It has an `id` and no mask any more.

        Raises UnknownKey for a document with secrets while there is no key and none can be made.
        """
        return _rewritten(document, lambda path, text: self._sealed(document["id"], path, text))

    def unseal(self, document: Document) -> dict[str, Any]:
        """The document as it was before it was sealed. Raises UnknownKey and AlteredSecret."""
        return _rewritten(document, lambda path, text: self._opened(document["id"], path, text))

    def reseal(self, document: Document) -> ResealedDocument:
        """The sealed document with all its secrets under the newest key. Raises UnknownKey and AlteredSecret."""
        changed = 0

        def anew(path: str, text: str) -> str:
            nonlocal changed
            if (match := _SEALED.fullmatch(text)) is None or match["key"] == self._newest:
                return text
            changed += 1
            return self._sealed(document["id"], path, self._opened(document["id"], path, text))

        return ResealedDocument(_rewritten(document, anew), changed)

    def masked(self, document: Document) -> dict[str, Any]:
        """The document as it may be shown, whether it is sealed or not."""
        return masked(document)

    def keep(self, document: Document, stored: Document | None) -> dict[str, Any]:
        """The document, with the stored secret wherever it has the mask.

        `stored` is sealed; None: there is none.

        Raises DefinitionError where nothing is stored, or where a password would be sent to another place than so far;
        UnknownKey and AlteredSecret for a secret that is needed and cannot be opened.
        """
        kept = dict(_secrets(stored)) if stored is not None else {}
        problems: list[Problem] = []

        def keep(path: str, text: str) -> str:
            if text != MASK:
                return text
            if stored is None or path not in kept:
                problems.append(Problem(path, f"{MASK}, and no secret that is stored", "the secret, or a reference"))
            elif path in _SENT and _destination(document, path) != _destination(stored, path):
                expected = "the password itself or a reference, since it would be sent to another place than so far"
                problems.append(Problem(path, f"{MASK} in place of a password", expected))
            else:
                return self._opened(stored["id"], path, kept[path])
            return text

        complete = _rewritten(document, keep)
        if problems:
            raise DefinitionError(problems)
        return complete

    def _sealed(self, connection: str, path: str, text: str) -> str:
        if self._newest is None and self._make_key is not None:
            made = self._make_key()
            self._newest = key_id(made)
            self._ciphers = {self._newest: AESGCM(made), **self._ciphers}
        if self._newest is None:
            raise UnknownKey(connection, path, "no key to seal it with, expected secrets.key or secrets.key_file")
        nonce = os.urandom(_NONCE_BYTES)
        ciphertext = self._ciphers[self._newest].encrypt(
            nonce, text.encode("utf-8"), _bound(self._newest, connection, path)
        )
        return f"sealed:v1:{self._newest}:{base64.urlsafe_b64encode(nonce + ciphertext).decode().rstrip('=')}"

    def _opened(self, connection: str, path: str, text: str) -> str:
        match = _SEALED.fullmatch(text)
        if match is None:
            return text
        cipher = self._ciphers.get(match["key"])
        if cipher is None:
            known = ", ".join(self._ciphers) or "none"
            raise UnknownKey(connection, path, f"a secret sealed with key {match['key']}, expected one of: {known}")
        try:
            raw = base64.b64decode(match["text"] + "=" * (-len(match["text"]) % 4), b"-_", validate=True)
            bound = _bound(match["key"], connection, path)
            return cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], bound).decode("utf-8")
        except (InvalidTag, ValueError):
            raise AlteredSecret(connection, path, "a text that was altered or moved since it was sealed") from None


def masked(document: Document) -> dict[str, Any]:
    """The document as it may be shown: `*****` for each literal secret. References are no secrets."""
    shown = _rewritten(document, lambda _path, _text: MASK, unread=lambda _value: MASK)
    uri = shown.get("uri")
    if isinstance(uri, str) and not _REFERENCES.fullmatch(uri) and not _is_address(uri):
        # Any part of it may be a secret.
        shown["uri"] = mask_uri(uri)
    return shown


def _is_address(uri: str) -> bool:
    try:
        # A reference may stand for a port too.
        parse_uri(_without_references(uri, "1"))
    except ValueError:
        return False
    return True


def _bound(key: str, connection: str, path: str) -> bytes:
    """What a sealed text belongs to; it opens nowhere else."""
    return json.dumps(["sealed:v1", key, connection, path]).encode()


def _secrets(document: Document) -> Iterator[tuple[str, str]]:
    """Every literal secret, by its path."""
    found: list[tuple[str, str]] = []

    def note(path: str, text: str) -> str:
        found.append((path, text))
        return text

    _rewritten(document, note)
    return iter(found)


def _keep_value(value: Any) -> Any:
    return value


def _rewritten(document: Document, change: Change, unread: Callable[[Any], Any] = _keep_value) -> dict[str, Any]:
    """A copy of the document, with each literal secret changed; `unread` gets what is no text where a secret belongs."""

    def changed(path: str, value: Any) -> Any:
        # What is no text is not a secret yet; the rules of documents refuse it.
        if not isinstance(value, str):
            return value if value is None else unread(value)
        return value if _REFERENCES.fullmatch(value) else change(path, value)

    copy: dict[str, Any] = dict(document)
    if "uri" in copy:
        uri = copy["uri"]
        copy["uri"] = _changed_uri(uri, changed) if isinstance(uri, str) else unread(uri)
    for steps in _FIELDS:
        holder: dict[str, Any] | None = copy
        for step in steps[:-1]:
            inner = holder.get(step) if holder is not None else None
            if holder is not None and isinstance(inner, Mapping):
                holder[step] = holder = dict(inner)
            else:
                holder = None
        if holder is not None and steps[-1] in holder:
            holder[steps[-1]] = changed(json_path(*steps), holder[steps[-1]])
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
    """The text without references, which hold colons and slashes of their own: by default it stays as long as it is."""
    return REFERENCE.sub(lambda match: filler or "x" * len(match[0]), uri)


def _password_span(uri: str) -> tuple[int, int] | None:
    """Where the password of an address begins and ends.

    Without a colon, all user information counts as one.
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
    """Where the secret at this path is sent, and as whose."""
    tunnel = document.get("sshTunnel")
    tunnel = tunnel if isinstance(tunnel, Mapping) else {}
    if path.startswith("sshTunnel"):
        own = tunnel.get("credentials")
        return tunnel.get("uri"), own.get("username") if isinstance(own, Mapping) else None
    options = document.get("specificConfig")
    servers = options.get("bootstrapServers") if isinstance(options, Mapping) else None
    return _place(document.get("uri")), servers, tunnel.get("uri") if tunnel.get("enabled") else None


def _place(uri: object) -> object:
    """Scheme, user, host and port of an address."""
    if not isinstance(uri, str) or (authority := _AUTHORITY.match(_without_references(uri))) is None:
        return uri
    start, end = _password_span(uri) or (0, 0)
    return uri[:start], uri[end : authority.end()]
