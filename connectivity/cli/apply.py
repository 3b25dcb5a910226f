"""`connectivity connections apply` and `test`: commands that take connection files.

Both validate the files first, with the problems of `validate`, except for secret references without a value on this machine:
the service resolves them where it runs. `apply` compares the files with the service's connections, shows the changes, and
makes them unless someone else has changed a connection meanwhile (`if-match`, `if-none-match`).
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from connectivity.cli.http_client import CHANGED_MEANWHILE, NOT_FOUND, ServiceClient, ServiceRefused
from connectivity.cli.options import load_files
from connectivity.cli.output import print_error, print_notes, print_problems
from connectivity.cli.plan import Action, DesiredDocument, PlanStep, StoredDocument

MAX_SAMPLE = 16 * 1024 * 1024

TEST = "application/vnd.connectivity.connection-test+json"


def load_documents(paths: Sequence[Path], *, as_json: bool) -> dict[str, DesiredDocument]:
    """Return the documents of files and folders.

    Ends the command with 2 for missing files, with 1 for problems, which it prints.
    """
    loaded = load_files(paths, for_remote_service=True)
    if loaded.problems:
        print_problems(loaded.problems, as_json=as_json)
        raise typer.Exit(1)
    if not as_json:
        print_notes(loaded, as_errors=True)
    return {name: DesiredDocument(document, loaded.files[name]) for name, document in loaded.documents.items()}


def fetch_stored(service: ServiceClient, wanted: Mapping[str, DesiredDocument]) -> dict[str, StoredDocument]:
    """Return the service's connections, with the documents of those in the files. Raises RequestFailed."""
    found: dict[str, StoredDocument] = {}
    for each in service.items("connections", fields="id,_owner,_file,_revision"):
        each = _object(service, each)
        name, file = str(each.get("id")), each.get("_file")
        owner = str(file or "with a name that the service does not return") if each.get("_owner") == "file" else None
        found[name] = StoredDocument(f'"rev:{each.get("_revision")}"', file=owner)
    for name in wanted.keys() & {name for name, each in found.items() if each.file is None}:
        try:
            answer = service.ask("GET", "connections", name)
        except ServiceRefused as error:
            if error.http_status != NOT_FOUND:
                raise
            del found[name]
        else:
            found[name] = StoredDocument(answer.tag or found[name].tag, _object(service, answer.document))
    return found


class StepOutcome(NamedTuple):
    """Why a step failed, None if it succeeded; and whether the service lacks the document of the step."""

    failure: str | None
    is_missing: bool = False


_NOT_DELETED = StepOutcome("not deleted, because another change failed; fix it, then run the command again")


def carry_out_all(
    service: ServiceClient, steps: Sequence[PlanStep], wanted: Mapping[str, DesiredDocument]
) -> Iterator[tuple[str, StepOutcome]]:
    """Carry out the steps in order, and yield the ID and the outcome of each.

    No connection is deleted after a document was not stored, because that may replace the deleted connection. Raises
    RequestFailed if further steps would fail too.
    """
    is_missing = False
    for step in steps:
        is_left = is_missing and step.action is Action.GONE
        outcome = _NOT_DELETED if is_left else carry_out(service, step, wanted)
        is_missing |= outcome.is_missing
        yield step.id, outcome


def carry_out(service: ServiceClient, step: PlanStep, wanted: Mapping[str, DesiredDocument]) -> StepOutcome:
    """Carry out the step.

    Raises RequestFailed if further steps would fail too.
    """
    try:
        condition = {"if-none-match": "*"} if step.tag is None else {"if-match": step.tag}
        if step.action is Action.GONE:
            service.ask("DELETE", "connections", step.id, headers=condition)
        else:
            body = {**wanted[step.id].document, "id": step.id}
            service.ask("PUT", "connections", step.id, body=body, headers=condition)
    except ServiceRefused as error:
        if error.http_status == CHANGED_MEANWHILE:
            text = "it was changed meanwhile and is left unchanged; run the command again to see the new plan"
            return StepOutcome(text, step.action is not Action.GONE)
        return StepOutcome(error.why, step.action is not Action.GONE and not error.is_stored)
    return StepOutcome(None)


def select_document(wanted: Mapping[str, DesiredDocument], name: str | None) -> Mapping[str, Any]:
    """Return the document with the ID `name`, or else the only one. Otherwise, exit with 2."""
    names = ", ".join(wanted) or "none"
    if name is not None:
        if name in wanted:
            return wanted[name].document
        print_error(f"found no connection {name}, expected one of: {names}; fix --id")
    elif len(wanted) == 1:
        return next(iter(wanted.values())).document
    else:
        print_error(f"found the connections {names}, expected one; choose one of them with --id")
    raise typer.Exit(2)


def read_sample(file: Path | None) -> bytes | None:
    """The message that a file holds; `-` is standard input.

    Ends the command with 2 where it cannot be read.
    """
    if file is None:
        return None
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(MAX_SAMPLE + 1)
        with file.open("rb") as opened:
            return opened.read(MAX_SAMPLE + 1)
    except OSError as error:
        print_error(f"{file}: expected a readable file, found: {error.strerror}; fix --sample")
        raise typer.Exit(2) from None


def connection_test_result(service: ServiceClient, connection_test: Mapping[str, Any]) -> Any:
    """Return the result of a connection test. Raises RequestFailed."""
    kind = TEST if "sample" in connection_test else "application/json"
    body = connection_test if "sample" in connection_test else connection_test["connection"]
    return service.ask("POST", "connections", query={"dry-run": "true"}, body=body, content_type=kind).document


def connection_test_of(
    document: Mapping[str, Any], sample: bytes | None, headers: Sequence[str], source: int, address: str | None
) -> dict[str, Any]:
    """Return the body of a connection test.

    Ends the command with 2 for a sample that is too large, or an invalid header.
    """
    if sample is None:
        return {"connection": document}
    if len(sample) > MAX_SAMPLE:
        print_error(
            f"--sample: found more than {MAX_SAMPLE} bytes, expected at most {MAX_SAMPLE}; use a smaller sample"
        )
        raise typer.Exit(2)
    message: dict[str, Any] = {"headers": dict(map(_header, headers)), "source": source}
    try:
        message["payload"] = sample.decode()
    except UnicodeDecodeError:
        message |= {"payload": base64.b64encode(sample).decode(), "encoding": "base64"}
    if address is not None:
        message["address"] = address
    return {"connection": document, "sample": message}


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        print_error(f"found the header {text!r}, expected name=value; fix --header")
        raise typer.Exit(2)
    return name.strip(), value


def _object(service: ServiceClient, found: Any) -> Mapping[str, Any]:
    """Return the JSON object of a response. Raises ServiceUnreachable for anything else."""
    from connectivity.config.documents import is_within_limits

    if not isinstance(found, dict) or not is_within_limits(found):
        raise service.unexpected_response()
    return found
