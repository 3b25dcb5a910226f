"""What the store can refuse, and whether trying again may help.

StoreError
├── RevisionConflict     another entry has this entity and revision: expected, found
├── QueryError
│   ├── RqlSyntaxError   text, position
│   ├── UnknownProperty
│   ├── InvalidOption
│   ├── AggregationInvalid
│   └── TooManyGroups
├── Unstorable           a change that no journal can hold; trying again does not help
├── SchemaTooNew         the file was written by a later version of this service
├── SparkMissing         there is no Java, or there are no jars: no pipeline on this machine
├── LakeUnfit            lake and journal do not belong together, or a table is not what it should be
├── LakeBusy             another pipeline writes the lake
├── HistoryUnavailable   events that the journal has trimmed cannot be read in the lake now
├── OutputUnusable       a file that an export cannot be written to
├── WideQueryError       a wide query that was not answered
│   ├── NoWideQueries    there is no lake to ask: `spark.mode: off`
│   ├── NoPipeline       retry: nobody answers wide queries now
│   ├── PipelineLost     retry: whoever answered ended amid it, or could not go on
│   ├── QueryRefused     Spark does not understand the query, or it fails on the rows it finds
│   ├── QueryCancelled   as asked
│   └── LimitExceeded    what was found and what was allowed
│       ├── TimeIsUp
│       ├── TooManyRows
│       └── ResultTooLarge   more than the pipeline may hold at once
└── StoreUnavailable     full disk, read-only file, damaged page; retry: the same call may work later
"""

from __future__ import annotations

from typing import ClassVar

from mappings.errors import Fault
from mappings.ids import EntityId

_RQL_HINT = "Ensure that all opening parentheses have also closing ones and that the RQL expression is valid."

_LONGEST_NAME = 200
"""So many characters of a property are repeated in a message."""


def _marked(introduction: str, text: str, position: int, expected: str) -> str:
    """The text, or the part of it that matters, with a mark under the position."""
    shown, mark = text, position
    if len(text) > 120:
        start = max(0, position - 60)
        shown, mark = text[start : start + 120], position - start
    return f"{introduction}{shown}\n{' ' * (len(introduction) + mark)}^ position {position}: expected {expected}"


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
        super().__init__(_marked("Invalid filter expression: ", text, position, expected))
        self.text, self.position, self.expected = text, position, expected


class UnknownProperty(QueryError):
    """A property that no document has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Unknown property name: {name if len(name) <= _LONGEST_NAME else f'{name[:_LONGEST_NAME]}…'}")
        self.name = name


class InvalidOption(QueryError):
    """Options of a search that cannot be followed; `fault` says so to the client."""

    def __init__(self, message: str, description: str) -> None:
        super().__init__(message)
        self.fault = Fault(400, "thing-search:search.option.invalid", message, description)

    @classmethod
    def at(cls, text: str, position: int, expected: str) -> InvalidOption:
        """Text that is no list of options; the message shows it with a mark under `position`."""
        return cls(_marked("Invalid options: ", text, position, expected), "At least one provided option is invalid.")


class AggregationInvalid(QueryError):
    """An aggregation whose specification cannot be understood; the text says what was found and what was expected."""

    def __init__(self, message: str) -> None:
        super().__init__(f"Invalid aggregation: {message}")
        self.fault = Fault(
            400,
            "thing-search:aggregation.invalid",
            f"Invalid aggregation: {message}.",
            'Write it like {"groupBy": {"room": "attributes/room"}, "measures": {"largest": {"max": "attributes/size"}}}.',
        )


class TooManyGroups(QueryError):
    """An aggregation that told more groups apart than it may."""

    status = 413

    def __init__(self, found: str) -> None:
        super().__init__(f"found {found}")
        self.fault = Fault(
            413,
            "thing-search:aggregation.toolarge",
            f"The aggregation has {found}, which is more than one may have.",
            "Group by a path with fewer values, or narrow the filter.",
        )


class BudgetExceeded(StoreError):
    """A search looked at more than it may; `fault` says so to the client."""

    status = 503

    def __init__(self, seconds: float) -> None:
        super().__init__(f"found no further thing within {seconds:g} s of looking, which is all that a search may take")
        self.fault = Fault(
            503,
            "thing-search:budget.exceeded",
            f"The search found no further thing within {seconds:g} s of looking.",
            "Ask for less: compare a path for equality or a range, name namespaces, or let an operator index the path.",
        )


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
    """Whoever moves events must not go on: some would be lost, or the unknown be written over. Somebody has to look."""


class LakeBusy(StoreError):
    """Another pipeline writes this lake; the same call works when that has ended."""

    retry = True
    status = 503


class OutputUnusable(StoreError):
    """The file that was named cannot be written: it is there already, its folder is not, or neither may be changed."""

    status = 400


class WideQueryError(StoreError):
    """A wide query that was not answered, or not to its end. What was found until then is no answer."""


class NoWideQueries(WideQueryError):
    """This installation has no lake that could be asked."""

    status = 501


class NoPipeline(WideQueryError):
    """No pipeline answers wide queries now."""

    retry = True
    status = 503


class PipelineLost(WideQueryError):
    """Whoever answered has ended amid the query, or could not go on with it."""

    retry = True
    status = 503


class QueryRefused(WideQueryError):
    """Spark says that the query is wrong: its text, a table or a column that is not there, a value it fails on."""

    status = 400


class QueryCancelled(WideQueryError):
    """The query was stopped, as somebody asked."""

    status = 499


class LimitExceeded(WideQueryError):
    """The query went beyond a limit, and was stopped."""


class TimeIsUp(LimitExceeded):
    """It took longer than it may."""

    status = 504


class TooManyRows(LimitExceeded):
    """It found more rows than were allowed."""

    status = 413


class ResultTooLarge(LimitExceeded):
    """It found more than the pipeline may hold in its memory: a narrower query, or several, are answered."""

    status = 413


class HistoryUnavailable(StoreError):
    """Events that the journal has trimmed cannot be read in the lake now. `fault` says so to the client.

    The present is not touched by that, and neither is the history that the journal has.
    """

    retry = True

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(
            500,
            "internalerror",
            "An older part of this history cannot be read now.",
            "Please try again later, or ask for newer revisions; the administrator finds the reason in the log.",
        )


class StoreUnavailable(StoreError):
    """The store cannot write (or read) now. Nothing of the batch is stored; the same call may succeed later."""

    retry = True
    status = 503
