"""Who is let in: decided from the opening request alone, before there is a peer.

`accept_handshake` is pure. It judges in this order: the web page that a browser speaks for (403), the number of peers (503),
the token or certificate (401), the path (404), the versions of the Streamr protocol where the query asks for some (400). A
refusal is an HTTP response in plain words.

What becomes headers of a peer's messages is decided here too: those of its request in lower case, without secrets and
without what belongs to the socket itself, and the door's own, which no request can set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from connectivity.transports.listener.link import REPLY_TO
from mappings.streamr.errors import UnknownVersion
from mappings.streamr.frames import CONTROL, HEADER, MESSAGE, message_version

USER = "websocket.user"
FRAME = "websocket.frame"
TEXT, BINARY = "text", "binary"
ACCESS_TOKEN = "access_token"

_OWN = "websocket."
_SOCKETS = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "keep-alive",
        "proxy-authorization",
        "trailer",
        "transfer-encoding",
        "upgrade",
        HEADER,
        REPLY_TO,
    }
)
"""Headers of a request that are no headers of messages, as are those of the opening itself."""

_BEARER = "bearer "
_MOST_MEMBERS = 100


@dataclass(frozen=True, slots=True)
class Rules:
    """What a door asks of whoever wants to come in. `tokens`: hash → name; `paths`: where messages are taken or sent."""

    paths: frozenset[str]
    tokens: Mapping[str, str]
    origins: frozenset[str]
    max_peers: int
    wants_certificate: bool = False
    """Whether a certificate that one of the trusted ones has signed opens the door, too."""
    subprotocols: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Path → the wire protocols that are spoken there and have a name among subprotocols."""


class HandshakeRequest(NamedTuple):
    """An opening request: the target of its GET, its headers in order, and the name in its certificate, if it has one."""

    target: str
    headers: Iterable[tuple[str, str]]
    certified: str | None = None


class AcceptedHandshake(NamedTuple):
    """Somebody is let in: at this path, with these headers for each of its messages.

    On one of these subprotocols the two sides may agree, and need not.
    """

    path: str
    headers: Mapping[str, str]
    subprotocols: frozenset[str] = frozenset()


class RefusedHandshake(NamedTuple):
    """Somebody is not let in, and what it is told."""

    status: HTTPStatus
    text: str


def accept_handshake(asked: HandshakeRequest, rules: Rules, peers: int) -> AcceptedHandshake | RefusedHandshake:
    """Whether a request opens the door, while there are so many peers."""
    raw_path, _, query = asked.target.partition("?")
    path = unquote(raw_path)
    headers: dict[str, str] = {}
    for name, raw in asked.headers:
        name, value = name.lower(), _text(raw)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    origin = headers.get("origin")
    if origin is not None and "*" not in rules.origins and origin.lower() not in rules.origins:
        return RefusedHandshake(
            HTTPStatus.FORBIDDEN, "Pages of this origin may not connect, expected one named in `origins`."
        )
    if peers >= rules.max_peers:
        return RefusedHandshake(
            HTTPStatus.SERVICE_UNAVAILABLE, f"There are {peers} peers, the most there may be. Try later."
        )
    try:
        members = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_MEMBERS)
    except ValueError:
        return RefusedHandshake(HTTPStatus.BAD_REQUEST, f"The query has more than {_MOST_MEMBERS} members.")
    user = _user(rules, asked.certified, headers.get("authorization"), dict(members).get(ACCESS_TOKEN))
    if user is None and (rules.tokens or rules.wants_certificate):
        return RefusedHandshake(HTTPStatus.UNAUTHORIZED, _wanted(rules))
    if path not in rules.paths:
        return RefusedHandshake(
            HTTPStatus.NOT_FOUND, "There is nothing at this path, expected an address of a source or target."
        )
    kept = {
        name: value
        for name, value in headers.items()
        if name not in _SOCKETS and not name.startswith((_OWN, "sec-")) and value
    }
    if user is not None:
        kept[USER] = user
    try:
        version = message_version(query)
    except UnknownVersion as error:
        return RefusedHandshake(HTTPStatus.BAD_REQUEST, error.fault.message)
    if {CONTROL, MESSAGE} <= dict(members).keys():
        kept[HEADER] = str(version)
    return AcceptedHandshake(path, kept, rules.subprotocols.get(path, frozenset()))


def _text(raw: str) -> str:
    """A header's value, whose bytes beyond ASCII the parser has kept as halves of characters."""
    return raw if raw.isascii() else raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _user(rules: Rules, certified: str | None, authorization: str | None, in_query: str | None) -> str | None:
    """The name of who has shown a token or certificate; None for anybody else."""
    token = in_query
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        token = authorization[len(_BEARER) :].strip()
    if token and (name := rules.tokens.get(sha256(token.encode()).hexdigest())) is not None:
        return name
    return certified


def _wanted(rules: Rules) -> str:
    ways = ["a certificate that the door trusts"] if rules.wants_certificate else []
    ways += (
        [f"`Authorization: Bearer …` or `?{ACCESS_TOKEN}=…` with a token that the door knows"] if rules.tokens else []
    )
    return f"Expected {' or '.join(ways)}."
