"""Authentication and authorization of requests to the API.

First refused are requests whose body ends at two places (request smuggling), and tokens in the query, which end up in logs.
Requests to foreign names (`Host`) and changes by pages of other origins (`Origin`) get nothing but probes. Without
configured tokens only loopback is allowed. With tokens, everything but probes requires a bearer token; its role decides.
Tokens are compared in constant time.

A wrong token delays the response (`connectivity.security.logins`); a right token never waits. An address with several
delayed requests gets 429 without a check. A request without token is not delayed.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from connectivity.api.errors import fault
from connectivity.api.responses import error_response
from connectivity.config.api_settings import ApiSettings, ApiToken, TokenRole, is_loopback
from connectivity.errors import OperationRefused
from connectivity.security.logins import LONGEST_DELAY, FailedLoginDelays, network_of
from mappings.errors import Fault

PROBES: Final = frozenset({"/health/live", "/health/ready"})
READ_METHODS: Final = frozenset({"GET", "HEAD"})
QUESTIONS: Final = frozenset({"/api/2/checkPermissions"})
"""Paths whose requests change nothing, whatever their method."""

_PORT: Final = re.compile(r":\d*\Z")
_TOKEN_NAMES: Final = re.compile(
    r"(?:x[_-]?)?(?:access|api|auth|authorization|bearer|id|private|refresh|session)?[_-]?"
    r"(?:token|key|authorization|bearer|password|passwd|secret)",
    re.IGNORECASE,
)

_MAX_DELAYED_REQUESTS: Final = 8
"""Wrong tokens of one address that wait for their answer."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: name in the audit log, role, subjects of searches."""

    name: str
    role: TokenRole
    subjects: tuple[str, ...] = ()
    is_named: bool = False
    """Whether the name belongs to a token of its own; shared tokens and loopback have no identity."""
    grants: tuple[str, ...] | None = None
    """The subjects that its connections may have; None: all."""

    def may_grant(self, subject: str) -> bool:
        """Whether connections of this caller may have this subject, which may have placeholders."""
        if self.grants is None:
            return True
        return any(
            subject.startswith(grant[:-1]) if grant.endswith(":*") else subject == grant for grant in self.grants
        )


ANONYMOUS_ADMIN: Final = Caller("api", TokenRole.ADMIN)
"""The caller if no token is required, and the caller with `api.token`."""


class TokenDigests:
    """The tokens of the settings, as digests of one length."""

    def __init__(self, settings: ApiSettings) -> None:
        self._known = [(_digest(it.token.get_secret_value().encode()), _caller(it)) for it in settings.tokens]
        if settings.token is not None and (text := settings.token.get_secret_value()):
            self._known.append((_digest(text.encode()), ANONYMOUS_ADMIN))
        self.is_required = bool(self._known)

    def caller(self, given: bytes) -> Caller | None:
        """Return the caller with this token. Takes the same time for every token."""
        digest = _digest(given)
        found = None
        for known, caller in self._known:
            if hmac.compare_digest(digest, known):
                found = caller
        return found


class Authenticator:
    """Middleware: answers refused requests, and passes the caller of others on (`caller_of`)."""

    def __init__(
        self, app: ASGIApp, settings: ApiSettings, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._app = app
        self._settings = settings
        self._keys = TokenDigests(settings)
        self._delays = FailedLoginDelays(most_delayed=_MAX_DELAYED_REQUESTS)
        self._sleep = sleep

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, is_probe = Headers(scope=scope), scope["path"] in PROBES
        found: Caller | Fault | None = check_body_length(headers) or check_query_token(scope["query_string"])
        if found is None:
            foreign = check_host(headers, self._settings) or check_origin(headers, scope["method"])
            found = foreign or await self._caller(headers, address_of(scope))
            if is_probe and not isinstance(found, Caller):
                # Everyone may read the status; only callers with a token get the details.
                found = None
            elif isinstance(found, Caller) and not found.role.may(needed := _role_of(scope)):
                found = insufficient_role(found, needed)
        if isinstance(found, Fault):
            await error_response(found, headers=_extra_headers(found))(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = found
        await self._app(scope, receive, send)

    async def _caller(self, headers: Headers, address: str) -> Caller | Fault:
        """Return the caller, or the refusal. Waits if the token is wrong."""
        if not self._keys.is_required:
            return ANONYMOUS_ADMIN
        if len(authorizations := headers.getlist("authorization")) > 1:
            # A proxy may have checked the other one.
            return fault(
                "api:unauthorized", "The request has several 'authorization' headers, expected one with a bearer token."
            )
        scheme, _, given = "".join(authorizations).partition(" ")
        # Only what HTTP calls white space: a byte of a token may be another kind of it in Latin-1.
        given = given.strip(" \t")
        if scheme.lower() != "bearer" or not given:
            return fault("api:unauthorized", "A valid bearer token is required.")
        if self._delays.is_full(address):
            return fault("api:requests.toomany", "Your address has sent too many requests with a wrong token.")
        # Header bytes come as Latin-1, whatever they were meant to be.
        caller = self._keys.caller(given.encode("latin-1"))
        if caller is not None:
            return caller
        seconds = self._delays.record_failure(address)
        try:
            await self._sleep(seconds)
        finally:
            self._delays.record_answer(address)
        return fault("api:unauthorized", "A valid bearer token is required.")


def caller_of(request: Request) -> Caller:
    """Return the caller of an authenticated request."""
    caller: Caller = request.state.caller
    return caller


async def admins_only(request: Request) -> None:
    """Restrict an operation to admins. Raises OperationRefused."""
    caller = caller_of(request)
    if not caller.role.may(TokenRole.ADMIN):
        raise OperationRefused(insufficient_role(caller, TokenRole.ADMIN))


def insufficient_role(caller: Caller, needed: TokenRole) -> Fault:
    """Return the refusal for a role that is not sufficient."""
    return fault(
        "api:forbidden",
        f"The role '{caller.role.value}' lacks permission for this operation; it requires '{needed.value}'.",
    )


def check_body_length(headers: Headers) -> Fault | None:
    """Return the refusal of a body with two lengths: a proxy may treat the rest as another request."""
    if "transfer-encoding" in headers and "content-length" in headers:
        return fault(
            "api:request.invalid",
            "The request has the headers 'transfer-encoding' and 'content-length', expected only one.",
        )
    return None


def check_query_token(query: bytes) -> Fault | None:
    """The refusal of a query that has a parameter with the name of a token; its value is not looked at."""
    if not query:
        return None
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if _TOKEN_NAMES.fullmatch(name.strip()):
            return fault(
                "api:token.misplaced",
                f"The query has the parameter '{name[:40]}', but the service accepts tokens only in a header.",
                "Send the token in the header 'authorization: Bearer …'. Replace this token, because logs may contain it.",
            )
    return None


def check_host(headers: Headers, settings: ApiSettings) -> Fault | None:
    """Return the refusal of a request to a foreign name; None for others.

    Somebody may have made that name resolve to this machine (DNS rebinding). An address is not resolved, so it is allowed
    where others than this machine may ask.
    """
    named = headers.get("host", "")
    name = _PORT.sub("", named).strip("[]").lower()
    if is_loopback(name) or name == settings.host.strip("[]").lower():
        return None
    if (settings.needs_token and _is_address(name)) or any(_is_named(name, each) for each in settings.hosts):
        return None
    return fault(
        "api:host.foreign",
        f"The header 'host' is {named[:100]!r}, expected localhost, {settings.host} or a name in api.hosts.",
        "If this name belongs to the service, add it to the setting api.hosts.",
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_named(name: str, entry: str) -> bool:
    return name.endswith(entry[1:]) if entry.startswith("*.") else name == entry


def check_origin(headers: Headers, method: str) -> Fault | None:
    """Return the refusal of a request that a web page of another origin may have sent; None for others."""
    named = headers.get("host", "")
    origin = headers.get("origin")
    if method not in READ_METHODS and origin is not None and origin.partition("://")[2] != named:
        return fault("api:origin.foreign", f"The header 'origin' is {origin!r}, expected {named} or no such header.")
    return None


def address_of(scope: Scope) -> str:
    """Return the address for which failures are counted."""
    return network_of(scope["client"][0] if scope.get("client") else "")


def _role_of(scope: Scope) -> TokenRole:
    """Return the role that a request requires. `admins_only` requires more."""
    is_read = scope["method"] in READ_METHODS or scope["path"] in QUESTIONS
    return TokenRole.READ if is_read else TokenRole.WRITE


def _extra_headers(found: Fault) -> dict[str, str]:
    match found.status:
        case 400 if found.error == "api:request.invalid":
            # Nothing after it on this connection is read.
            return {"connection": "close"}
        case 401:
            return {"www-authenticate": "Bearer"}
        case 429:
            return {"retry-after": str(int(LONGEST_DELAY))}
        case _:
            return {}


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()


def _caller(token: ApiToken) -> Caller:
    return Caller(token.name, token.role, token.subjects, is_named=True, grants=token.grants)
