"""Tests a connection: reaches its broker and addresses, and maps a sample message.

Nothing is stored, announced or dispatched, and other clients of the broker are not affected. The document is validated
before. The test has its own client name, `<uuid>-dry-run`, so that a running connection can be tested
(`ConnectionType.probe`). A missing source address keeps the connection from opening; a missing target does not, since
publishing works as soon as it exists (Ditto connections, operations and bad configuration). The sample is mapped even if the
broker cannot be reached (`connectivity.management.dry_run`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import uuid4

import structlog

from connectivity.connections.lifecycle import Status, status_of
from connectivity.connections.model import Connection
from connectivity.errors import (
    ClientCertificateRequired,
    ConnectionRefused,
    Detail,
    LinkError,
    NotConnected,
    OperationRefused,
)
from connectivity.management.definition import SampleMessage
from connectivity.management.dry_run import dry_run
from connectivity.sources.reader import MAX_PAYLOAD
from connectivity.transports import load_connection_type
from connectivity.transports.base import AddressCheck, ProbeReport
from connectivity.validation.limitations import caveats, ignored_parts, refusal
from mappings.errors import Fault

log = structlog.get_logger(__name__)

Report: TypeAlias = dict[str, Any]

PATIENCE = 10.0
"""How many seconds the test may take to connect."""

FAILED, UNAVAILABLE = "connectivity:connection.failed", "connectivity:connection.unavailable"


async def run_connection_test(
    connection: Connection,
    sample: SampleMessage | None = None,
    *,
    max_payload: int = MAX_PAYLOAD,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    patience: float = PATIENCE,
) -> Report:
    """Test a connection with a valid document, and return the report as JSON:

    - `connection`: its status, as an open connection would have it;
    - `clients`: the tested one, with `status` and `details`, which begin with a value of `Detail`;
    - `sources`, `replyTargets`, `targets`: `index`, `address`, `status` and `details`; `unknown` if only a message
      could show it;
    - `withoutEffect`: parts of the document without effect;
    - `sample`: the result of the sample message, if there is one (`connectivity.management.dry_run.dry_run`).

    Raises OperationRefused with this report if the connection could not be opened: 504, or 503 if the broker requires a
    client certificate and there is none; 400 for a sample of an unknown source.
    """
    name = f"{uuid4()}-dry-run"
    looking = asyncio.ensure_future(_look(connection, name, patience))
    try:
        mapped = None
        if sample is not None:
            mapped = await dry_run(connection, sample, max_payload=max_payload, now=now)
        examination = await looking
    finally:
        # Cancellation leaves no link behind.
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    error = examination if isinstance(examination, LinkError) else _first_error(examination)
    report = _report(connection, examination, error)
    if mapped is not None:
        report["sample"] = mapped
    if error is not None:
        raise OperationRefused(_fault(error), report=report)
    return report


async def _look(connection: Connection, name: str, patience: float) -> ProbeReport | LinkError:
    if (reason := refusal(connection)) is not None:
        return ConnectionRefused(Detail.REFUSED, reason)
    examine = load_connection_type(connection.connection_type).examine
    try:
        async with asyncio.timeout(patience):
            return await examine(connection, name)
    except TimeoutError:
        return _TookTooLong(Detail.TIMEOUT, _too_long(patience))
    except LinkError as error:
        return error
    except Exception as error:
        log.exception("unexpected error in a connection test", connection=connection.id)
        return NotConnected(Detail.CONNECTING, f"failed: {type(error).__name__}")


class _TookTooLong(NotConnected):
    """The broker did not say no; it did not say anything in time."""


def _too_long(patience: float) -> str:
    return f"Failed to open requested connection within <{patience:g}> seconds!"


def _first_error(examination: ProbeReport) -> LinkError | None:
    """Why the connection would not open: the first source that cannot be consumed."""
    return next((each.error for source in examination.sources for each in source if each.error is not None), None)


def _fault(error: LinkError) -> Fault:
    # A broker's own text may end with a full stop.
    reason = str(error).removesuffix(".")
    if isinstance(error, ClientCertificateRequired):
        return Fault(
            503,
            UNAVAILABLE,
            f"The connection cannot be opened: {reason}.",
            "Add 'credentials' with a client certificate to the connection.",
        )
    if isinstance(error, _TookTooLong):
        return Fault(504, FAILED, error.text, str(error))
    return Fault(
        504,
        FAILED,
        f"Failed to open requested connection: {reason}.",
        "Check the address, the credentials and the rights of the connection at its broker.",
    )


def _report(connection: Connection, examination: ProbeReport | LinkError, error: LinkError | None) -> Report:
    found = examination if isinstance(examination, ProbeReport) else ProbeReport((), (), ())
    besides = [*caveats(connection), found.note]
    return {
        "connection": _status(error).value,
        "clients": [{"status": _status(error).value, "details": str(error) if error else _details(besides)}],
        "sources": [_address_report(index, each) for index, source in enumerate(found.sources) for each in source],
        "replyTargets": [
            _address_report(index, each)
            for index, (source, each) in enumerate(zip(connection.sources, found.replies, strict=False))
            if source.reply_target.enabled
        ],
        "targets": [_address_report(index, each) for index, each in enumerate(found.targets)],
        "withoutEffect": list(ignored_parts(connection)),
    }


def _address_report(index: int, finding: AddressCheck) -> Report:
    status = _status(finding.error) if finding.is_known else Status.UNKNOWN
    details = str(finding.error) if finding.error is not None else _details([finding.note])
    return {
        "index": index,
        "address": finding.address,
        "status": status.value,
        "details": finding.note if status is Status.UNKNOWN else details,
    }


def _details(besides: Iterable[str]) -> str:
    notes: Sequence[str] = [each for each in besides if each]
    return f"{Detail.CONNECTED.value}: {'; '.join(notes)}" if notes else Detail.CONNECTED.value


def _status(error: LinkError | None) -> Status:
    return Status.OPEN if error is None else status_of(error)
