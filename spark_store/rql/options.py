"""The options of a search: page size and order.

    options   = *WS option *( "," option )               ; and no more
    option    = "size" "(" 1*DIGIT ")" / "sort" "(" sorting *( "," sorting ) ")"
              / "limit" "(" long "," long ")" / "cursor" "(" property ")"
    sorting   = ( "+" / "-" ) property

The grammar is that of Ditto's HTTP API, but `limit` and `cursor` are refused: a subscription has demand instead. Blanks are
allowed at the beginning only. Of several sizes the first applies; there is at most one `sort`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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

BY_ID = SortField(Field(FieldKind.DOCUMENT, ("thingId",)))
"""The last property of every order."""

_NAME = re.compile(r"[a-z]*")
_DIGITS = re.compile(r"[0-9]+")
_LONG = re.compile(r"[+-]?[0-9]+")
_NAMES = "sort, size, limit or cursor"


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """The options. `order` always ends with the ID of the thing."""

    size: int = SIZE
    order: tuple[SortField, ...] = (BY_ID,)


def read_options(text: str | None) -> QueryOptions:
    """The options that a text means; no text and an empty one ask for nothing. Raises InvalidOption."""
    if not text:
        return QueryOptions()
    if len(text) > MAX_LENGTH:
        raise InvalidOption.at(text, MAX_LENGTH, f"at most {MAX_LENGTH} characters")
    return _Options(text).root()


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


class _Options(TextReader):
    """Options and how far they have been read."""

    def root(self) -> QueryOptions:
        self.blanks()
        sizes: list[int] = []
        orders: list[tuple[SortField, ...]] = []
        unsupported: list[str] = []
        self.option(sizes, orders, unsupported)
        while self.take(","):
            self.option(sizes, orders, unsupported)
        if self.position < len(self.text):
            self.fail("a comma, or the end of the text")
        if unsupported:
            raise InvalidOption(
                f"The option {unsupported[0]} is not supported at this endpoint.",
                "A subscription asks for pages by its demand; size(n) says how many things each of them has.",
            )
        if len(orders) > 1:
            raise InvalidOption("Too many sort options.", "0 or 1 sort option is expected.")
        return QueryOptions(sizes[0] if sizes else SIZE, order_by(orders[0] if orders else ()))

    def option(self, sizes: list[int], orders: list[tuple[SortField, ...]], unsupported: list[str]) -> None:
        start = self.position
        name = self.run(_NAME)
        if name not in ("sort", "size", "limit", "cursor"):
            self.fail(_NAMES, start)
        self.expect("(")
        if name == "size":
            sizes.append(self.size())
        elif name == "sort":
            orders.append(self.sort())
        elif name == "limit":
            self.some(_LONG, "a whole number")
            self.expect(",")
            self.some(_LONG, "a whole number")
        else:
            self.property()
        self.expect(")")
        if name in ("limit", "cursor"):
            unsupported.append(self.text[start : self.position][:120])

    def size(self) -> int:
        digits = self.some(_DIGITS, "a whole number").lstrip("0")
        size = int(digits or "0") if len(digits) <= len(str(MAX_SIZE)) else MAX_SIZE + 1
        if not 1 <= size <= MAX_SIZE:
            raise InvalidOption(
                f"Invalid option: 'size({digits[:20] or '0'})'", f"size(n) -- n must be between 1 and {MAX_SIZE}"
            )
        return size

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
