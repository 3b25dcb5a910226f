"""Requests to a running service over its HTTP API, with plain errors.

Address: `--url`, else CONNECTIVITY_URL, else `api.host` and `api.port` of the settings. Token: `--token-file`, else
CONNECTIVITY_TOKEN, else `api.token` of the settings; never an argument, which every user of the machine could read in the
list of processes.

Each request has a connection of its own. It uses no proxy and follows no redirect, since others would get the token. A
response is bounded in time as a whole, and in size. Each RequestFailed has the exit code of the command.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from connectivity.errors import ConnectivityError

URL_VARIABLE = "CONNECTIVITY_URL"
TOKEN_VARIABLE = "CONNECTIVITY_TOKEN"
RESPONSE_TIMEOUT_SECONDS = 75.0
"""How long a response may take; opening a connection waits for its clients up to 55 s."""
MAX_RESPONSE_BYTES = 128 * 1024 * 1024

NOT_FOUND = 404
CHANGED_MEANWHILE = 412

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}
_TOKEN = re.compile(r"[\x21-\x7e]+")
_CHUNK = 64 * 1024


class RequestFailed(ConnectivityError):
    """A request without usable response; the text gives the reason and the remedy."""

    exit_code: ClassVar[int] = 1


class BadAddress(RequestFailed):
    """Exit code 2: an invalid address or token; nothing was requested."""

    exit_code = 2


class NotAllowed(RequestFailed):
    """Exit code 4: the token is missing, invalid, or lacks permission (401, 403)."""

    exit_code = 4


class ServiceUnreachable(RequestFailed):
    """No service answered."""

    exit_code = 5


class ServiceRefused(RequestFailed):
    """The service refused the request: the status and error code of its response, and all of it."""

    def __init__(self, text: str, http_status: int, code: str, fault: Mapping[str, Any]) -> None:
        super().__init__("\n  ".join((text, *_problems(fault.get("problems")))))
        self.http_status, self.code, self.fault = http_status, code, fault

    @property
    def is_stored(self) -> bool:
        """Whether the change was stored nevertheless, because only the broker refused the connection."""
        return self.code == "connectivity:connection.failed"

    @property
    def why(self) -> str:
        """Why a change was refused, or that it is stored, if only the broker refused the connection."""
        return f"stored, but could not be opened; the service keeps retrying: {self}" if self.is_stored else str(self)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response of the service; `document` is None if it has no body."""

    status: int
    document: Any
    headers: Mapping[str, str]

    @property
    def tag(self) -> str | None:
        """The entity tag, to be given back as `if-match`."""
        return self.headers.get("etag")


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The address of a service. `display_url` is the form for messages."""

    host: str
    port: int
    path: str = ""
    is_secure: bool = False

    @property
    def display_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_secure else 'http'}://{host}:{self.port}{self.path}"


def parse_service_address(url: str) -> ServiceAddress:
    """Read `http[s]://host[:port][/path]`. Raises BadAddress."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    is_secure = parts.scheme == "https"
    extra = parts.query or parts.fragment or re.search(r"[\x00-\x20\x7f]", url)
    if "@" in parts.netloc:
        raise BadAddress(f"expected an address without a user name; pass the token in {TOKEN_VARIABLE} or --token-file")
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or extra:
        raise BadAddress(f"found the address {url!r}, expected http://host:port; fix --url")
    return ServiceAddress(host, (443 if is_secure else 80) if port is None else port, parts.path.rstrip("/"), is_secure)


def reachable(host: str) -> str:
    """Return the address for reaching a listener on `host`, in the form of a URL."""
    if host in _ANY_HOST:
        return _ANY_HOST[host]
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def read_token(file: Path) -> str:
    """The token that a file holds. Raises BadAddress."""
    try:
        text = file.read_bytes()[:_CHUNK].decode().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "content that is not UTF-8"
        raise BadAddress(f"{file}: expected a file with a token, found: {reason}; fix --token-file") from None
    return check_token(text, str(file))


def check_token(text: str, origin: str) -> str:
    """The token, if a header can carry it; nothing else may show it. Raises BadAddress."""
    if not _TOKEN.fullmatch(text):
        raise BadAddress(f"{origin}: expected a token of visible ASCII characters without spaces; fix the token there")
    return text


class ServiceClient:
    """A service that can be asked."""

    def __init__(
        self, place: ServiceAddress, token: str | None = None, *, seconds: float = RESPONSE_TIMEOUT_SECONDS
    ) -> None:
        self.address = place
        self._token = token
        self._seconds = seconds

    def get(self, *path: str, **query: str | None) -> Any:
        """The document of a GET. Raises RequestFailed."""
        return self.ask("GET", *path, query=query).document

    def items(self, *path: str, **query: str | None) -> list[Any]:
        """Return the list that a GET request returns. Raises RequestFailed."""
        found = self.get(*path, **query)
        if not isinstance(found, list):
            raise self.unexpected_response()
        return found

    def some(self, limit: int, *path: str) -> tuple[list[Any], int]:
        """Return up to so many items of a GET with a list, and their total. Raises RequestFailed."""
        answer = self.ask("GET", *path, query={"limit": str(limit)})
        total = answer.headers.get("x-total-count", "")
        if not isinstance(answer.document, list) or not total.isdecimal():
            raise self.unexpected_response()
        return answer.document, int(total)

    def unexpected_response(self) -> ServiceUnreachable:
        """Return the error for a response of unexpected shape."""
        return ServiceUnreachable(
            f"{self.address.display_url}: found a response that does not come from this service; fix --url"
        )

    def ask(
        self,
        method: str,
        *path: str,
        query: Mapping[str, str | Sequence[str] | None] | None = None,
        body: object = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Request `/api/2/` and `path`, each of them one segment.

        Texts are sent as they are, other bodies as JSON. Query parameters that are None are left out, and one with several
        values is repeated. Raises RequestFailed.
        """
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        target = "/".join([self.address.path, "api", "2", *(quote(segment, safe=":") for segment in path)])
        target += f"?{urlencode(asked, doseq=True)}" if asked else ""
        sent = {"accept": "application/json", "connection": "close", **(headers or {})}
        if self._token is not None:
            sent["authorization"] = f"Bearer {self._token}"
        content = None
        if body is not None:
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            sent["content-type"] = content_type
        with _translate_errors(self.address):
            status, found, data = self._exchange(method, target, sent, content)
        return _parse_response(self.address, status, found, data, has_token=self._token is not None)

    def _exchange(
        self, method: str, target: str, headers: Mapping[str, str], content: bytes | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body. Raises OSError, HTTPException, _TooLarge."""
        client = self._client()
        late = threading.Event()
        try:
            client.connect()
            with _deadline(client.sock, self._seconds, late.set):
                client.request(method, target, content, dict(headers))
                answer = client.getresponse()
                data = b"".join(_read(answer))
            if late.is_set():
                raise TimeoutError
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, data
        except (OSError, http.client.HTTPException, ValueError):
            if late.is_set():
                raise TimeoutError(f"no complete response within {self._seconds:g} s") from None
            raise
        finally:
            client.close()

    def _client(self) -> http.client.HTTPConnection:
        # Each wait is bounded by the library, the whole by us.
        if self.address.is_secure:
            return http.client.HTTPSConnection(self.address.host, self.address.port, timeout=self._seconds)
        return http.client.HTTPConnection(self.address.host, self.address.port, timeout=self._seconds)


class _TooLarge(Exception):
    """An answer beyond every bound."""


def _read(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    size = 0
    while chunk := answer.read(_CHUNK):
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise _TooLarge
        yield chunk
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)


@contextmanager
def _deadline(sock: socket.socket, seconds: float, notify: Callable[[], None]) -> Iterator[None]:
    """Close the socket when the time is up, and report it."""

    def end() -> None:
        notify()
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It is gone already.
            return

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _translate_errors(place: ServiceAddress) -> Iterator[None]:
    """Raise errors of the network and its library as ServiceUnreachable."""
    try:
        yield
    except TimeoutError:
        raise ServiceUnreachable(
            f"{place.display_url}: no complete response in time; check --url and the service"
        ) from None
    except ConnectionRefusedError:
        raise ServiceUnreachable(f"{place.display_url}: connection refused; start the service, or fix --url") from None
    except (socket.gaierror, UnicodeError):
        raise ServiceUnreachable(f"{place.display_url}: unknown host; fix --url, {URL_VARIABLE} or api.host") from None
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        raise ServiceUnreachable(
            f"{place.display_url}: the server's certificate is not trusted: {reason}; name the CA's file in SSL_CERT_FILE"
        ) from None
    except ssl.SSLError:
        raise ServiceUnreachable(f"{place.display_url}: the server does not use TLS; try http:// in --url") from None
    except _TooLarge:
        raise ServiceUnreachable(
            f"{place.display_url}: found a response of more than {MAX_RESPONSE_BYTES} bytes; request fewer results"
        ) from None
    except (http.client.HTTPException, ValueError, EOFError):
        raise ServiceUnreachable(f"{place.display_url}: the response is not HTTP, or incomplete; fix --url") from None
    except OSError as error:
        raise ServiceUnreachable(
            f"{place.display_url}: the service cannot be reached: {error.strerror or error}; fix --url"
        ) from None


def _parse_response(
    place: ServiceAddress, status: int, headers: Mapping[str, str], data: bytes, *, has_token: bool
) -> HttpResponse:
    """The answer, if it is one of this service. Raises RequestFailed."""
    document = _document(headers, data)
    if 200 <= status < 300:
        if data and document is _NOT_JSON:
            raise ServiceUnreachable(f"{place.display_url}: status {status} with a body that is not JSON; fix --url")
        return HttpResponse(status, None if document is _NOT_JSON else document, headers)
    fault = document if isinstance(document, dict) else {}
    code, message = (fault.get(name) for name in ("error", "message"))
    if status in (401, 403):
        raise NotAllowed(f"{place.display_url}: {_not_allowed(status, message, has_token)}")
    if not isinstance(code, str) or not isinstance(message, str):
        raise ServiceUnreachable(
            f"{place.display_url}: status {status} with an error that does not come from this service; fix --url"
        )
    description = fault.get("description")
    # The problems of an invalid document are printed instead of its description.
    is_more = isinstance(description, str) and not fault.get("problems")
    # A message of several lines marks a place in the one above.
    gap = "\n" if "\n" in message else " "
    raise ServiceRefused(gap.join([f"{code}:", message, *([str(description)] if is_more else [])]), status, code, fault)


def _not_allowed(status: int, message: object, has_token: bool) -> str:
    """Return the error with the service's text, if there is one, and the remedy."""
    text = message if isinstance(message, str) else f"status {status}"
    if status == 401 and not has_token:
        return f"{text} Give the token in {TOKEN_VARIABLE} or --token-file."
    return f"{text} Use another token or address."


def _problems(found: object) -> Iterator[str]:
    for problem in found if isinstance(found, list) else ():
        if isinstance(problem, dict):
            path, what, expected, hint = (problem.get(name) for name in ("path", "found", "expected", "hint"))
            yield f"{path}: found {what}, expected {expected}" + (f" ({hint})" if hint else "")


_NOT_JSON = object()


def _document(headers: Mapping[str, str], data: bytes) -> Any:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        return _NOT_JSON
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return _NOT_JSON


def token_variable() -> str | None:
    """Return the value of the environment variable; an empty one is treated as absent. Raises BadAddress."""
    text = os.environ.get(TOKEN_VARIABLE, "").strip()
    return check_token(text, TOKEN_VARIABLE) if text else None
