"""Checks of permissions over HTTP: as `checkPermissions` of the Ditto protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from connectivity.errors import OperationRefused, TwinError
from connectivity.security.on_behalf import BehalfAudit
from connectivity.twins.decider import NO_NAME, Decision
from connectivity.twins.permission_checks import CHECK_PERMISSIONS
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Command
from spark_store.errors import StoreError

_SEVERAL: Final = EntityId(EntityType.POLICY, NO_NAME, NO_NAME)


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """Checks as JSON of what `subjects` may do.

    `instead`: the user who asks about others; None for one who asks about themselves.
    """

    subjects: tuple[str, ...]
    checks: bytes
    instead: str | None = None


class PermissionRequests:
    """Answers the checks."""

    def __init__(self, decide: Callable[[Command, Sequence[str]], Decision], audit: BehalfAudit) -> None:
        self._decide = decide
        self._audit = audit

    async def check(self, request: PermissionRequest) -> bytes:
        """Return the results as a JSON object. Raises OperationRefused."""
        command = Command(_SEVERAL, CHECK_PERMISSIONS, "/", request.checks, {})
        try:
            if request.instead is not None:
                await self._audit.record(request.instead, "permission check", request.subjects)
            return self._decide(command, request.subjects).response.value or b"{}"
        except TwinError as error:
            raise OperationRefused(error.fault) from error
        except StoreError as error:
            raise OperationRefused(Fault(503, "api:store.unavailable", str(error))) from error
