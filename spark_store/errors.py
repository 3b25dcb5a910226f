"""What the store can refuse, and whether trying again may help.

StoreError
├── RevisionConflict     another entry has this entity and revision: expected, found
├── QueryError
│   ├── RqlSyntaxError   text, position
│   └── UnknownProperty
├── Unstorable           a change that no journal can hold; trying again does not help
├── SchemaTooNew         the file was written by a later version of this service
├── SparkMissing         there is no Java, or there are no jars: no pipeline on this machine
├── LakeUnfit            lake and journal do not belong together, or a table is not what it should be
├── LakeBusy             another pipeline writes the lake
└── StoreUnavailable     full disk, read-only file, damaged page; retry: the same call may work later
"""

from __future__ import annotations

from typing import ClassVar

from mappings.errors import Fault
from mappings.ids import EntityId

_RQL_HINT = "Ensure that all opening parentheses have also closing ones and that the RQL expression is valid."


class StoreError(Exception):
    """The root of this package's errors."""

    retry: ClassVar[bool] = False
    status: ClassVar[int] = 500


class RevisionConflict(StoreError):
    """An append whose first revision does not follow the newest one. Nothing of the batch was stored."""

    status = 409

    def __init__(self, entity: EntityId, expected: int, found: int) -> None:
        super().__init__(f"{entity}: expected the newest revision to be {expected}, found {found}")
        self.entity, self.expected, self.found = entity, expected, found


class QueryError(StoreError):
    """A query text that cannot be answered; `fault` says so to the client."""

    status = 400

    def __init__(self, message: str, description: str | None = _RQL_HINT) -> None:
        super().__init__(message)
        self.fault = Fault(400, "rql.expression.invalid", message, description)


class RqlSyntaxError(QueryError):
    """Text that is no RQL. The message shows the text with a mark under `position` (0-based, in characters)."""

    def __init__(self, text: str, position: int, expected: str) -> None:
        shown, mark = text, position
        if len(text) > 120:
            start = max(0, position - 60)
            shown, mark = text[start : start + 120], position - start
        super().__init__(
            f"Invalid filter expression: {shown}\n{' ' * (len('Invalid filter expression: ') + mark)}^ "
            f"position {position}: expected {expected}"
        )
        self.text, self.position, self.expected = text, position, expected


class UnknownProperty(QueryError):
    """A property that no document has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown property name: {name}")
        self.name = name


class Unstorable(StoreError):
    """A change that cannot be stored as it is: its parts contradict each other, or a value is no JSON.

    That is a mistake of whoever made the change. Nothing of the batch was stored.
    """


class SchemaTooNew(StoreError):
    """The file's schema version is above the newest known one."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(f"{path}: found schema version {found}, expected at most {known}; start the newer service")


class SparkMissing(StoreError):
    """What Spark needs on this machine is not there. Says what, and how it comes there."""


class LakeUnfit(StoreError):
    """The pipeline must not go on: it would lose events, or write over what it does not know. Somebody has to look."""


class LakeBusy(StoreError):
    """Another pipeline writes this lake; the same call works when that has ended."""

    retry = True
    status = 503


class StoreUnavailable(StoreError):
    """The store cannot write (or read) now. Nothing of the batch is stored; the same call may succeed later."""

    retry = True
    status = 503
