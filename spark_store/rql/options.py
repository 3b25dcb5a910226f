"""The options of a search: page size and order, and over HTTP an offset or a cursor.

    options   = *WS option *( "," option )               ; and no more
    option    = "size" "(" 1*DIGIT ")" / "sort" "(" sorting *( "," sorting ) ")"
              / "limit" "(" long "," long ")" / "cursor" "(" property ")"
    sorting   = ( "+" / "-" ) property

The grammar is that of Ditto's HTTP API, but a subscription has demand instead of `limit` and `cursor`, which are refused.
Blanks are allowed at the beginning only. There is at most one `sort`. Of several sizes the first applies; over HTTP there is
one at most, and of `size` and `limit` the last one applies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from spark_store.errors import InvalidOption, UnknownProperty
from spark_store.rql.ast import Field, FieldKind, Operator
from spark_store.rql.binding import bind
from spark_store.rql.parser import TextReader
from spark_store.rql.query import SortField

SIZE = 25
"""The default number of things on a page."""

MAX_SIZE = 200
"""The greatest number of things on a page."""

MAX_LENGTH = 64 * 1024
"""The longest text, in characters."""

MAX_SORTED = 32
"""The most properties of an order: each is read for every compared thing."""

MAX_NAMESPACES = 500
"""The most namespaces of a search."""

BY_ID = SortField(Field(FieldKind.DOCUMENT, ("thingId",)))
"""The last property of every order."""

_NAME = re.compile(r"[a-z]*")
_DIGITS = re.compile(r"[0-9]+")
_LONG = re.compile(r"[+-]?[0-9]+")
_NAMES = "sort, size, limit or cursor"
_LONGEST_NUMBER = 9
_TOO_LARGE = 10**_LONGEST_NUMBER


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The options. `order` always ends with the ID of the thing."""

    size: int = SIZE
    order: tuple[SortField, ...] = (BY_ID,)


@dataclass(frozen=True, slots=True)
class PageOptions(QueryOptions):
    """The options of one page over HTTP.

    `has_size` and `has_order` tell whether size and order were given.
    """

    has_size: bool = False
    has_order: bool = False
    offset: int | None = None
    """The number of things before the page, if there is a `limit`."""
    cursor: str | None = None


def read_options(text: str | None) -> QueryOptions:
    """The options that a text means; no text and an empty one ask for nothing. Raises InvalidOption."""
    return _Options(_bounded(text)).subscription() if text else QueryOptions()


def read_page_options(text: str | None) -> PageOptions:
    """As `read_options`, over HTTP."""
    return _Options(_bounded(text)).page() if text else PageOptions()


def _bounded(text: str) -> str:
    if len(text) > MAX_LENGTH:
        raise InvalidOption.at(text, MAX_LENGTH, f"at most {MAX_LENGTH} characters")
    return text


def bind_sorting(name: str) -> Field:
    """The field that a property names as one to sort by. Raises UnknownProperty."""
    field = bind(name, Operator.EQ)
    match field.path:
        case ("thingId" | "policyId" | "definition" | "_revision" | "_created" | "_modified",):
            is_sortable = field.kind is not FieldKind.NAMESPACE
        case ("attributes", *_):
            is_sortable = True
        case ("features", name_of_feature, part, *_):
            is_sortable = name_of_feature != "*" and part != "definition"
        case _:
            is_sortable = False
    if not is_sortable:
        raise UnknownProperty(name)
    return field


def order_by(wanted: tuple[SortField, ...]) -> tuple[SortField, ...]:
    """Return the order with the thing's ID at its end, without fields that make no difference."""
    order: list[SortField] = []
    for sorting in (*wanted, BY_ID):
        if any(earlier.field == sorting.field for earlier in order):
            continue
        order.append(sorting)
        if sorting.field == BY_ID.field:
            break
    return tuple(order)


class _Limit(NamedTuple):
    """The option `limit`: the number of things before the page, and on it."""

    offset: int
    size: int


class _Options(TextReader):
    """Options and how far they have been read."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.sizes: list[int | _Limit] = []
        """The options `size` and `limit`, in their order."""
        self.orders: list[tuple[SortField, ...]] = []
        self.cursors: list[str] = []
        self.unsupported: list[str] = []
        """The texts of options that a subscription does not have."""

    def subscription(self) -> QueryOptions:
        self.root()
        if self.unsupported:
            raise InvalidOption(
                f"The option {self.unsupported[0]} is not supported at this endpoint.",
                "A subscription requests pages by its demand; size(n) sets the number of things per page.",
            )
        sizes = [self.checked_size(size) for size in self.sizes if not isinstance(size, _Limit)]
        return QueryOptions(sizes[0] if sizes else SIZE, self.order())

    def page(self) -> PageOptions:
        self.root()
        limits = [size for size in self.sizes if isinstance(size, _Limit)]
        if len(self.sizes) - len(limits) > 1:
            raise InvalidOption("There may not be more than 1 'size' option.", "Use at most one 'size' option.")
        if len(self.cursors) > 1:
            raise InvalidOption("There may not be more than 1 'cursor' option.", "Use at most one 'cursor' option.")
        if limits and self.cursors:
            raise InvalidOption(
                "The option 'cursor' is not valid for the search request.",
                "The options 'cursor' and 'limit' must not be used together.",
            )
        for size in self.sizes:
            self.checked_limit(size) if isinstance(size, _Limit) else self.checked_size(size)
        last = self.sizes[-1] if self.sizes else SIZE
        offset, size = last if isinstance(last, _Limit) else (0 if limits else None, last)
        has_size = bool(self.sizes)
        cursor = self.cursors[0] if self.cursors else None
        return PageOptions(size, self.order(), has_size, bool(self.orders), offset, cursor)

    def root(self) -> None:
        self.blanks()
        self.option()
        while self.take(","):
            self.option()
        if self.position < len(self.text):
            self.fail("a comma, or the end of the text")

    def order(self) -> tuple[SortField, ...]:
        if len(self.orders) > 1:
            raise InvalidOption("Too many sort options.", "Use at most one 'sort' option.")
        return order_by(self.orders[0] if self.orders else ())

    def option(self) -> None:
        start = self.position
        name = self.run(_NAME)
        if name not in ("sort", "size", "limit", "cursor"):
            self.fail(_NAMES, start)
        self.expect("(")
        if name == "size":
            self.sizes.append(self.number(_DIGITS))
        elif name == "sort":
            self.orders.append(self.sort())
        elif name == "limit":
            offset = self.number(_LONG)
            self.expect(",")
            self.sizes.append(_Limit(offset, self.number(_LONG)))
        else:
            self.cursors.append(self.property())
        self.expect(")")
        if name in ("limit", "cursor"):
            self.unsupported.append(self.text[start : self.position][:120])

    def number(self, pattern: re.Pattern[str]) -> int:
        """Return a whole number; those beyond any limit are all the same."""
        text = self.some(pattern, "a whole number")
        digits = text.lstrip("+-").lstrip("0") or "0"
        return (-1 if text[0] == "-" else 1) * (int(digits) if len(digits) <= _LONGEST_NUMBER else _TOO_LARGE)

    def checked_size(self, size: int) -> int:
        if not 1 <= size <= MAX_SIZE:
            raise InvalidOption(f"Invalid option: 'size({size})'", f"size(n) -- n must be between 1 and {MAX_SIZE}")
        return size

    def checked_limit(self, limit: _Limit) -> None:
        if not 0 <= limit.offset < _TOO_LARGE or not 0 <= limit.size <= MAX_SIZE:
            raise InvalidOption(
                f"Invalid option: 'limit({limit.offset},{limit.size})'",
                f"limit(offset,count) -- offset must not be negative, and count must be between 0 and {MAX_SIZE}",
            )

    def sort(self) -> tuple[SortField, ...]:
        wanted = [self.sorting()]
        while self.take(","):
            if len(wanted) == MAX_SORTED:
                self.fail(f"at most {MAX_SORTED} properties to sort by")
            wanted.append(self.sorting())
        return tuple(wanted)

    def sorting(self) -> SortField:
        is_descending = self.take("-")
        if not is_descending and not self.take("+"):
            self.fail("'+' or '-' before a property")
        name = self.property()
        try:
            return SortField(bind_sorting(name), is_descending)
        except UnknownProperty as error:
            raise InvalidOption(str(error), "The sort option is invalid.") from error

    def some(self, pattern: re.Pattern[str], expected: str) -> str:
        return self.run(pattern) or self.fail(expected)

    def refuse(self, position: int, expected: str) -> InvalidOption:
        return InvalidOption.at(self.text, position, expected)
