"""A connection on trial: does its broker let us in, are its addresses there, what does a message of its become? Nothing is
stored, announced or dispatched, and whoever uses the broker notices nothing.

Its document has been checked like one that is to be kept. The broker is asked under a name of the trial's own,
`<uuid>-dry-run`, in the way that disturbs nobody (`BrokerType.examine`), so that a connection may be tried out while it
runs. A source whose address is not there, or is not ours, keeps the connection from opening; a target's does not, since
publishing works as soon as it is there (Ditto connections, operations and bad configuration).

The sample is mapped whether the broker can be reached or not (`connectivity.management.dry_run`).
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
from connectivity.errors import CertificateWanted, ConnectionRefused, Detail, LinkError, NotConnected, OperationRefused
from connectivity.management.dry_run import dry_run
from connectivity.management.interface import SampleMessage
from connectivity.sources.reader import MAX_PAYLOAD
from connectivity.transports import load_connection_type
from connectivity.transports.base import AddressCheck, ProbeReport
from connectivity.validation.limitations import caveats, ignored_parts, refusal
from mappings.errors import Fault

log = structlog.get_logger(__name__)


Report: TypeAlias = dict[str, Any]

PATIENCE = 10.0
"""Seconds that a connection may take to open on trial."""

FAILED, UNAVAILABLE = "connectivity:connection.failed", "connectivity:connection.unavailable"


async def run_connection_test(
    connection: Connection,
    sample: SampleMessage | None = None,
    *,
    max_payload: int = MAX_PAYLOAD,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    patience: float = PATIENCE,
) -> Report:
    """Try out a connection whose document has no problems. The report, as JSON:

    - `connection`: its status, as an open connection would have it;
    - `clients`: the one that was tried, with `status` and `details`, which begin with a word of `Detail`;
    - `sources`, `replyTargets`, `targets`: `index`, `address`, `status` and `details`; `unknown` is what only a message
      would show;
    - `withoutEffect`: what the document says and nothing comes of;
    - `sample`: what became of the message, if there is one (`connectivity.management.dry_run.dry_run`).

    Raises OperationRefused where the connection could not be opened, with this report: 504, or 503 where the broker wants a
    client certificate and there is none; 400 for a sample at a source that there is not.
    """
    name = f"{uuid4()}-dry-run"
    looking = asyncio.ensure_future(_look(connection, name, patience))
    try:
        mapped = None
        if sample is not None:
            mapped = await dry_run(connection, sample, max_payload=max_payload, now=now)
        examination = await looking
    finally:
        # Whoever gives up meanwhile leaves no link behind.
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
    assert examine is not None, "a type that is not carried has been refused"
    try:
        async with asyncio.timeout(patience):
            return await examine(connection, name)
    except TimeoutError:
        return _TookTooLong(Detail.TIMEOUT, _too_long(patience))
    except LinkError as error:
        return error
    except Exception as error:
        log.exception("a trial failed for a reason that nobody foresaw", connection=connection.id)
        return NotConnected(Detail.CONNECTING, f"failed: {type(error).__name__}")


class _TookTooLong(NotConnected):
    """The broker did not say no; it did not say anything in time."""


def _too_long(patience: float) -> str:
    return f"Failed to open requested connection within <{patience:g}> seconds!"


def _first_error(examination: ProbeReport) -> LinkError | None:
    """Why the connection would not open: the first source that cannot be consumed."""
    return next((each.error for source in examination.sources for each in source if each.error is not None), None)


def _fault(error: LinkError) -> Fault:
    if isinstance(error, CertificateWanted):
        return Fault(503, UNAVAILABLE, f"The connection cannot be opened: {error}", "Give it 'credentials'.")
    if isinstance(error, _TookTooLong):
        return Fault(504, FAILED, error.words, str(error))
    return Fault(504, FAILED, f"Failed to open requested connection: {error}")


def _report(connection: Connection, examination: ProbeReport | LinkError, error: LinkError | None) -> Report:
    found = examination if isinstance(examination, ProbeReport) else ProbeReport((), (), ())
    besides = [*caveats(connection), found.note]
    return {
        "connection": _status(error).value,
        "clients": [{"status": _status(error).value, "details": str(error) if error else _details(besides)}],
        "sources": [_shown(index, each) for index, source in enumerate(found.sources) for each in source],
        "replyTargets": [
            _shown(index, each)
            for index, (source, each) in enumerate(zip(connection.sources, found.replies, strict=False))
            if source.reply_target.enabled
        ],
        "targets": [_shown(index, each) for index, each in enumerate(found.targets)],
        "withoutEffect": list(ignored_parts(connection)),
    }


def _shown(index: int, finding: AddressCheck) -> Report:
    status = _status(finding.error) if finding.is_known else Status.UNKNOWN
    details = str(finding.error) if finding.error is not None else _details([finding.note])
    return {
        "index": index,
        "address": finding.address,
        "status": status.value,
        "details": finding.note if status is Status.UNKNOWN else details,
    }


def _details(besides: Iterable[str]) -> str:
    told: Sequence[str] = [each for each in besides if each]
    return f"{Detail.CONNECTED.value}: {'; '.join(told)}" if told else Detail.CONNECTED.value


def _status(error: LinkError | None) -> Status:
    return Status.OPEN if error is None else status_of(error)
