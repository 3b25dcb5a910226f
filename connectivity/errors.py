"""Exceptions of the service.

ConnectivityError
├── DefinitionError                        an invalid connection document, with all of its problems
├── SettingsError                          unusable settings
├── SealError (UnknownKey, AlteredSecret)  a stored secret that cannot be opened or sealed
├── LinkError                              NotConnected (retry; LinkRenewed: closed on purpose) or
│                                          ConnectionRefused (the operator must act; ClientCertificateRequired)
├── PublishFailed                          a message that the broker did not accept (MessageRefused, RetriesExhausted)
├── ScriptFailed                           a mapping script without results
└── OperationRefused, TwinError            a refused management operation or twin command
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from connectivity.security.redaction import redact
from mappings.errors import Fault


class ConnectivityError(Exception):
    """Base class of this package's errors."""

    retry: ClassVar[bool] = False
    status: ClassVar[int] = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a document: path, what was found, what was expected, and the nearest known name."""

    path: str
    found: str
    expected: str
    hint: str | None = None
    code: str = "connectivity:connection.configuration.invalid"

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}, expected {self.expected}" + (f" ({self.hint})" if self.hint else "")


class DefinitionError(ConnectivityError):
    """A connection document that cannot be used, with all of its problems."""

    status = 400

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class SettingsError(ConnectivityError):
    """Settings that cannot be used; the service exits with code 2."""


class SealError(ConnectivityError):
    """A secret of a stored document that cannot be opened or sealed; `connection` and `path` name it."""

    def __init__(self, connection: str, path: str, found: str) -> None:
        super().__init__(f"connection {connection}, {path}: found {found}")
        self.connection, self.path = connection, path


class UnknownKey(SealError):
    """The secret was sealed with a key that the settings do not name, or there is no key at all."""


class AlteredSecret(SealError):
    """The stored ciphertext is not the one that was sealed for this field of this connection."""


class Detail(str, Enum):
    """How the text of a connection's status begins; the broker's own message follows."""

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
    """A failed or ended link to a broker."""

    def __init__(self, detail: Detail, words: str = "") -> None:
        # The message comes from a broker, a library or the operating system, and may quote a secret.
        words = redact(words)
        super().__init__(f"{detail.value}: {words}" if words else detail.value)
        self.detail, self.text = detail, words


class NotConnected(LinkError):
    """The link was lost or could not be made, for a reason that may pass: retry."""

    retry = True
    status = 503


class LinkRenewed(NotConnected):
    """The link closed itself so that the broker redelivers what was not acknowledged. Not a failure."""


class ConnectionRefused(LinkError):
    """The broker or its certificate refuses the connection. Retried with the longest delay."""

    status = 400


class ClientCertificateRequired(ConnectionRefused):
    """The broker requires a client certificate, and the document has none."""


class PublishFailed(ConnectivityError):
    """A message that the broker did not accept, or that cannot be sent as its headers require."""

    def __init__(self, words: str, *, status: int = 503) -> None:
        words = redact(words)
        super().__init__(words)
        self.fault = Fault(status, "connectivity:message.sending.failed", words)


class MessageRefused(PublishFailed):
    """A message that the broker refused over a working link: it may accept those to other addresses."""


class RetriesExhausted(PublishFailed):
    """A message that is not retried, because several links ended while sending it."""


class ScriptFailed(ConnectivityError):
    """A mapping script without results: it raised an error or exceeded a limit. The text says which."""

    status = 400


class OperationRefused(ConnectivityError):
    """A refused management operation; `problems` lists those of a document.

    Nothing was changed, unless `fault` says so. `report` is JSON with the findings of a connection test whose broker
    could not be reached.
    """

    def __init__(self, fault: Fault, problems: Sequence[Problem] = (), report: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{fault.error}: {fault.message}")
        self.fault, self.problems, self.report = fault, tuple(problems), report


class TwinError(ConnectivityError):
    """A refused command on a thing or a policy. Nothing was stored.

    `etag` is the present entity tag of the addressed part, if the refusal was about it.
    """

    def __init__(self, fault: Fault, group: str = "things", etag: str | None = None) -> None:
        super().__init__(f"{fault.error}: {fault.message}")
        self.fault, self.group, self.etag = fault, group, etag


class CommandFailed(ConnectivityError):
    """A command did not do what it should; the process ends with `exit_code`."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
