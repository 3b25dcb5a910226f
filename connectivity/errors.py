"""What can go wrong around connections.

ConnectivityError
├── DefinitionError         a connection document with problems; the list of them
├── SettingsError           settings that cannot be used
├── SealError               a stored secret that cannot be opened; connection and path, never the secret
│   ├── UnknownKey          sealed with a key that is not here
│   └── AlteredSecret       not what was sealed for this place
├── LinkError               the link to a broker: a status detail and the broker's own words
│   ├── NotConnected        retry: gone, refused, unreachable, timed out
│   │   └── Renewed         on purpose: the next link gets again what this one could not take
│   └── ConnectionRefused   credentials, certificate, rights, configuration: an operator must act
│       └── CertificateWanted   the broker wants a client certificate, and none is given
├── PublishFailed           the broker did not take a message; `retry` says whether it might later
│   └── GivenUp             never tried again: links die of it
├── ScriptFailed            a mapping script that gave no results; the text says why
├── OperationRefused        what an operator asked is refused; `fault` is the answer
└── TwinError               a twin command that is refused; `fault` is the answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from connectivity.security.redaction import redact
from mappings.errors import Fault


class ConnectivityError(Exception):
    """The root of this package's errors."""

    retry: ClassVar[bool] = False
    status: ClassVar[int] = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a document: where, what was found, what was expected, the nearest known name."""

    path: str
    found: str
    expected: str
    hint: str | None = None
    code: str = "connectivity:connection.configuration.invalid"

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}, expected {self.expected}" + (f" ({self.hint})" if self.hint else "")


class DefinitionError(ConnectivityError):
    """A connection document that cannot be used; every problem of it at once."""

    status = 400

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class SettingsError(ConnectivityError):
    """Settings that cannot be used; the service ends with exit code 2."""


class SealError(ConnectivityError):
    """A secret of a stored document that cannot be opened (or sealed): `connection` and `path` say which."""

    def __init__(self, connection: str, path: str, found: str) -> None:
        super().__init__(f"connection {connection}, {path}: found {found}")
        self.connection, self.path = connection, path


class UnknownKey(SealError):
    """It was sealed with a key that the settings do not name, or there is no key at all."""


class AlteredSecret(SealError):
    """What is stored is not what was sealed for this field of this connection."""


class Detail(str, Enum):
    """How the text of a connection's status begins; the broker's own words follow."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    UNKNOWN_HOST = "unknown host"
    REFUSED = "connection refused"
    TIMEOUT = "timeout"
    BAD_CREDENTIALS = "bad credentials"
    CERTIFICATE = "certificate"
    NOT_AUTHORIZED = "not authorized"
    MISSING_ADDRESS = "missing address"
    REFUSED_BY_BROKER = "refused by broker"
    STORE_UNAVAILABLE = "store unavailable"


class LinkError(ConnectivityError):
    """What happened to the link to a broker."""

    def __init__(self, detail: Detail, words: str = "") -> None:
        # The words are a broker's, a library's, a system's.
        words = redact(words)
        super().__init__(f"{detail.value}: {words}" if words else detail.value)
        self.detail, self.words = detail, words


class NotConnected(LinkError):
    """The link is gone or could not be made, through nobody's fault."""

    retry = True
    status = 503


class Renewed(NotConnected):
    """The link has ended itself, so that the broker delivers again what it has not acknowledged. Nobody failed."""


class ConnectionRefused(LinkError):
    """The broker, or its certificate, says no. Tried again with the longest pause, since a broker can be mended too."""

    status = 400


class CertificateWanted(ConnectionRefused):
    """The broker wants a client certificate, and the document has none."""


class PublishFailed(ConnectivityError):
    """A message that the broker did not take, or that cannot be sent as its headers ask."""

    def __init__(self, words: str, *, status: int = 503) -> None:
        words = redact(words)
        super().__init__(words)
        self.fault = Fault(status, "connectivity:message.sending.failed", words)


class DeliveryGivenUp(PublishFailed):
    """A message upon which one link after the other has died: it is not tried again."""


class ScriptFailed(ConnectivityError):
    """A mapping script that gave no results: an error of its own, or a bound that it met. The text says which."""

    status = 400


class OperationRefused(ConnectivityError):
    """What an operator asked is refused; `problems` are those of a document. Nothing was done, unless `fault` says so.

    `report` is what was found all the same, as JSON: that of a trial whose broker could not be reached.
    """

    def __init__(self, fault: Fault, problems: Sequence[Problem] = (), report: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{fault.error}: {fault.message}")
        self.fault, self.problems, self.report = fault, tuple(problems), report


class TwinError(ConnectivityError):
    """A command on a thing or a policy that is refused. Nothing was stored."""

    def __init__(self, fault: Fault, group: str = "things") -> None:
        super().__init__(f"{fault.error}: {fault.message}")
        self.fault, self.group = fault, group
