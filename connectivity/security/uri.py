"""The address of a broker in a connection's `uri`: `scheme://[user:password@]host:port[/path]`.

User name and password are percent-decoded before they are split at the first colon, so a user name cannot contain one. User
information without a colon is no credentials. A port is required, a query is not allowed. Connection types define their
schemes. `mask_uri` hides the password for display, even in invalid texts.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

MASK = "*****"

SECURE_SCHEMES = frozenset({"ssl", "tls", "amqps", "wss"})
"""The schemes that mean TLS, over all connection types."""

END_OF_USER = re.compile(":|%3a", re.IGNORECASE)
"""The end of the user name: a colon, perhaps encoded, since decoding comes first."""

_SECRET_OPTION = re.compile(r"(?:password|passphrase|secret|token|key)$", re.IGNORECASE)

_SHAPE = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?P<fragment>#.*)?",
    re.DOTALL,
)
_UNFIT = re.compile(r"[\s\x00-\x1f\x7f]")


class BrokerUri(NamedTuple):
    """A parsed `uri`.

    `path` is as written, with its leading slash, or empty; the password is shown masked.
    """

    scheme: str
    host: str
    port: int
    username: str | None
    password: SecretStr | None
    path: str

    @property
    def is_secure(self) -> bool:
        return self.scheme in SECURE_SCHEMES


def parse_uri(text: str) -> BrokerUri:
    """Parse a broker's address.

    Raises ValueError that says what was expected, without any part of the text.
    """
    if _UNFIT.search(text):
        raise ValueError("an address without white space and control characters, percent-encoded where needed")
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise ValueError("scheme://[user:password@]host:port[/path]")
    if shape["query"] is not None or shape["fragment"] is not None:
        raise ValueError("an address without query and fragment; options belong in specificConfig")
    user_information, _, _ = shape["authority"].rpartition("@")
    if "@" in user_information:
        raise ValueError("a percent-encoded user name and password, with %40 for @")
    try:
        split = urlsplit(text)
        host, port = split.hostname, split.port
    except ValueError:
        raise ValueError("scheme://host:port with a port from 1 to 65535") from None
    if not host:
        raise ValueError("a host name or an IP address before the port")
    if not port:
        raise ValueError("an explicit port from 1 to 65535")
    username, colon, password = unquote(user_information).partition(":")
    return BrokerUri(
        scheme=split.scheme,
        host=host,
        port=port,
        username=username if colon else None,
        password=SecretStr(password) if colon else None,
        path=split.path,
    )


def parse_tunnel_uri(text: str) -> tuple[str, int]:
    """Return host and port of `ssh://host:port`. Raises ValueError that says what was expected."""
    uri = parse_uri(text)
    if uri.scheme != "ssh" or "@" in text or uri.path not in ("", "/"):
        raise ValueError("ssh://host:port without a user name; the user name belongs in sshTunnel.credentials")
    return uri.host, uri.port


def is_secret_option(name: str) -> bool:
    """Whether an option's name marks its value as a secret."""
    return _SECRET_OPTION.search(name) is not None


def mask_uri(text: str) -> str:
    """The address with its password (and whatever else might be one) hidden. Takes any text."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    user_information, at, place = rest.rpartition("@")
    if at:
        colon = END_OF_USER.search(user_information)
        rest = f"{user_information[: colon.end()]}{MASK}@" if colon else f"{MASK}@"
    else:
        rest = ""
    place = re.sub(r"[?#].*", f"?{MASK}", place, flags=re.DOTALL)
    # An invalid port may be a password whose "@host" is missing.
    place = re.sub(r"^([^/\[:]*:)(?!\d{1,5}(?:/|\?|$))[^/?]*", rf"\g<1>{MASK}", place)
    return f"{scheme}{separator}{rest}{place}"
