"""Turns failures of the store and of secrets into refused operations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from connectivity.errors import ConnectivityError, DefinitionError, OperationRefused
from connectivity.management import faults
from connectivity.management.definition import Owner
from connectivity.management.reconciler import DesiredConnection
from spark_store.errors import StoreError


@contextlib.contextmanager
def refuse_store_failures() -> Iterator[None]:
    """Refuse the operation if the store fails."""
    try:
        yield
    except StoreError as error:
        raise OperationRefused(faults.unavailable(str(error))) from error


def refuse_file(wanted: DesiredConnection) -> None:
    """Refuse to change a connection that a file owns."""
    if wanted.owner is Owner.FILE:
        raise OperationRefused(faults.owned_by_file(wanted.id, wanted.file))


@contextlib.contextmanager
def refuse_secret_failures(connection_id: str) -> Iterator[None]:
    """A secret that cannot be sealed or opened is a problem of the document's."""
    try:
        yield
    except DefinitionError:
        raise
    except ConnectivityError as error:
        raise OperationRefused(faults.unusable(connection_id, [str(error)])) from None
