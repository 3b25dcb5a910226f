r"""The parser of RQL: recursive descent, one method for each rule of the grammar.

    root      = *WS query                                ; and no more
    query     = logical / compare / multi / exists / empty
    logical   = ("and" / "or") "(" query *( "," *WS query ) ")"
              / "not" "(" query ")"
    compare   = ("eq" / "ne" / "gt" / "ge" / "lt" / "le") "(" property "," literal ")"
              / ("like" / "ilike") "(" property "," string ")"
    multi     = "in" "(" property 1*( "," literal ) ")"
    exists    = "exists" "(" property ")"
    empty     = "empty" "(" property ")"
    property  = 1*( any character but , ) " \  / escape )
    literal   = ( double / long / string / "true" / "false" / "null" / time ) *WS
    long      = ["+" / "-"] nonzero *DIGIT / ["+"] "0"   ; within 64 bits
    double    = ["+" / "-"] whole "." 1*DIGIT
    string    = DQ *( character / escape ) DQ / "'" *( character / escape ) "'"
    escape    = "\" ( the quote / "\" / "/" / "b" / "f" / "n" / "r" / "t" / "u" 4HEXDIG )
    time      = "time:" 1*( ALPHA / DIGIT / "_" / "+" / "-" / "." / ":" / "[" / "]" )

Blanks are allowed only where the grammar has them: `eq(a, 2)` is an error, `and(…, …)` is not. A text has at most 64 KiB,
100 levels, and 500 operators and literals, and a pattern 1,024 characters, which bounds the time and stack of parsing and
evaluation.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import NoReturn

from spark_store.errors import QueryError, RqlSyntaxError
from spark_store.rql.ast import (
    OPERATORS,
    And,
    Compare,
    Empty,
    Exists,
    Field,
    GrammarRule,
    In,
    Literal,
    LiteralKind,
    Not,
    Operator,
    Or,
    Predicate,
)
from spark_store.rql.binding import Operands, bind, fit

_BLANKS = re.compile(r"[ \t\n\r\f]*")
_PROPERTY_RUN = re.compile(r'[^,)"\\]*')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES = {"\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class TextReader(ABC):
    """A text and how far it has been read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    @abstractmethod
    def refuse(self, position: int, expected: str) -> QueryError:
        """Return the error at a place of the text, with what was expected there."""

    def property(self) -> str:
        name = self.characters(_PROPERTY_RUN, '"')
        if not name:
            self.fail("a property such as attributes/counter")
        return name

    def escape(self, quote: str) -> str:
        """Return the character of an escape, after its backslash."""
        start = self.position - 1
        letter = self.text[self.position : self.position + 1]
        self.position += 1
        if letter == "u":
            return self.code_point(start)
        if letter and letter == quote:
            return letter
        if letter not in _ESCAPES:
            self.fail(f"one of the escapes \\{quote} \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX", start)
        return _ESCAPES[letter]

    def code_point(self, start: int) -> str:
        """The character of `\\uXXXX`, or of two of them that make a surrogate pair."""
        unit = self.hexadecimal(start)
        if not 0xD800 <= unit < 0xE000:
            return chr(unit)
        low = self.hexadecimal(start) if unit < 0xDC00 and self.take("\\u") else 0
        if not 0xDC00 <= low < 0xE000:
            self.fail("both halves of a surrogate pair", start)
        return chr(0x10000 + (unit - 0xD800) * 0x400 + low - 0xDC00)

    def hexadecimal(self, start: int) -> int:
        digits = self.run(_HEX)
        if not digits:
            self.fail("four hexadecimal digits after \\u", start)
        return int(digits, 16)

    def characters(self, plain: re.Pattern[str], quote: str) -> str:
        """Return plain characters and escapes, up to any other character."""
        parts = [self.run(plain)]
        while self.take("\\"):
            parts.append(self.escape(quote))
            parts.append(self.run(plain))
        return "".join(parts)

    def blanks(self) -> None:
        self.run(_BLANKS)

    def run(self, pattern: re.Pattern[str]) -> str:
        """Return the text that `pattern` matches here, perhaps empty."""
        found = pattern.match(self.text, self.position)
        if found is None:
            return ""
        self.position = found.end()
        return found[0]

    def take(self, character: str) -> bool:
        if not self.text.startswith(character, self.position):
            return False
        self.position += len(character)
        return True

    def expect(self, character: str) -> None:
        if not self.take(character):
            self.fail(f"'{character}'")

    def fail(self, expected: str, position: int | None = None) -> NoReturn:
        raise self.refuse(self.position if position is None else position, expected)


MAX_BYTES = 64 * 1024
"""The longest text, in bytes of UTF-8."""

MAX_LEVELS = 100
"""How deep queries may be nested; a comparison is one level."""

MAX_PARTS = 500
"""How many operators and literals there may be: each costs work for every document."""

MAX_PATTERN = 1024
"""The longest pattern of `like` and `ilike`, in characters."""

_NAME = re.compile(r"[A-Za-z]*")
_TIME = re.compile(r"[A-Za-z0-9_+\-.:\[\]]*")
_DOUBLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)\.[0-9]+")
_LONG = re.compile(r"[+-]?[1-9][0-9]*|\+?0")
_STRING_RUN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}

_OPERATORS = {operator.value: operator for operator in Operator}
_CONSTANTS = {
    "true": Literal(LiteralKind.BOOLEAN, True),
    "false": Literal(LiteralKind.BOOLEAN, False),
    "null": Literal(LiteralKind.NULL, None),
}
_MAX_LONG_DIGITS = 19


def parse(text: str, operands: Operands | None = None) -> Predicate:
    """The predicate that a filter's text means.

    `operands` knows the properties that are no part of a document.

    Raises RqlSyntaxError with the position where the text stops being a filter, and UnknownProperty.
    """
    _check_size(text)
    return _Parser(text, operands).root()


def _check_size(text: str) -> None:
    if len(text) * 4 <= MAX_BYTES:
        return
    encoded = text[: MAX_BYTES + 1].encode(errors="surrogatepass")
    if len(encoded) > MAX_BYTES:
        position = len(encoded[:MAX_BYTES].decode(errors="ignore"))
        raise RqlSyntaxError(text, position, f"at most {MAX_BYTES} bytes")


class _Parser(TextReader):
    """A filter and how far it has been read."""

    def __init__(self, text: str, operands: Operands | None) -> None:
        super().__init__(text)
        self.operands = operands
        self.level = 0
        self.parts = 0

    # -- the rules of the grammar

    def root(self) -> Predicate:
        self.blanks()
        predicate = self.query()
        if self.position < len(self.text):
            self.fail("the end of the text")
        return predicate

    def query(self) -> Predicate:
        start = self.position
        operator = _OPERATORS.get(self.run(_NAME))
        if operator is None:
            self.fail(f"one of {', '.join(_OPERATORS)}", start)
        self.count(start)
        self.level += 1
        if self.level > MAX_LEVELS:
            self.fail(f"at most {MAX_LEVELS} levels", start)
        self.expect("(")
        predicate = self.call(operator)
        self.expect(")")
        self.level -= 1
        return predicate

    def call(self, operator: Operator) -> Predicate:
        """Parse the text between the parentheses of an operator."""
        match OPERATORS[operator]:
            case GrammarRule.LOGICAL:
                return self.logical(operator)
            case GrammarRule.COMPARE:
                return self.compare(operator)
            case GrammarRule.MULTI:
                return self.multi()
            case GrammarRule.EXISTS:
                return Exists(self.bind(self.property(), operator))
            case GrammarRule.EMPTY:
                return Empty(self.bind(self.property(), operator))

    def logical(self, operator: Operator) -> Predicate:
        parts = [self.query()]
        if operator is Operator.NOT:
            return Not(parts[0])
        while self.take(","):
            self.blanks()
            parts.append(self.query())
        return And(tuple(parts)) if operator is Operator.AND else Or(tuple(parts))

    def compare(self, operator: Operator) -> Predicate:
        name = self.property()
        self.expect(",")
        start = self.position
        literal = self.literal()
        if operator in (Operator.LIKE, Operator.ILIKE) and literal.kind is not LiteralKind.TEXT:
            self.fail(f"a text in quotes, as {operator.value} compares with texts only", start)
        if operator in (Operator.LIKE, Operator.ILIKE) and len(str(literal.value)) > MAX_PATTERN:
            self.fail(f"a pattern of at most {MAX_PATTERN} characters", start)
        field = self.bind(name, operator)
        return Compare(operator, field, fit(field, literal))

    def multi(self) -> Predicate:
        name = self.property()
        self.expect(",")
        literals = [self.literal()]
        while self.take(","):
            literals.append(self.literal())
        field = self.bind(name, Operator.IN)
        return In(field, tuple(fit(field, literal) for literal in literals))

    def literal(self) -> Literal:
        start = self.position
        literal = self.double() or self.long() or self.string() or self.constant()
        if literal is None:
            self.fail("a number, a text in quotes, true, false, null or time:now", start)
        self.count(start)
        self.blanks()
        return literal

    def double(self) -> Literal | None:
        start = self.position
        digits = self.run(_DOUBLE)
        if not digits:
            return None
        number = float(digits)
        if math.isinf(number):
            self.fail("a number within the range of doubles", start)
        return Literal(LiteralKind.DOUBLE, number)

    def long(self) -> Literal | None:
        start = self.position
        digits = self.run(_LONG)
        if not digits:
            return None
        if len(digits.lstrip("+-")) > _MAX_LONG_DIGITS or not -(2**63) <= int(digits) < 2**63:
            self.fail("a whole number within 64 bits", start)
        return Literal(LiteralKind.WHOLE, int(digits))

    def string(self) -> Literal | None:
        quote = self.text[self.position : self.position + 1]
        if quote not in _STRING_RUN:
            return None
        self.expect(quote)
        value = self.characters(_STRING_RUN[quote], quote)
        self.expect(quote)
        return Literal(LiteralKind.TEXT, value)

    def constant(self) -> Literal | None:
        start = self.position
        name = self.run(_NAME)
        if name == "time" and self.take(":"):
            expression = self.run(_TIME)
            if not expression:
                self.fail("the name of a time, such as now")
            return Literal(LiteralKind.TIME, expression)
        literal = _CONSTANTS.get(name)
        if literal is None:
            self.position = start
        return literal

    def bind(self, name: str, operator: Operator) -> Field:
        return bind(name, operator, self.operands)

    def count(self, start: int) -> None:
        """Count an operator or literal, which begins at `start`."""
        self.parts += 1
        if self.parts > MAX_PARTS:
            self.fail(f"at most {MAX_PARTS} operators and literals", start)

    def refuse(self, position: int, expected: str) -> RqlSyntaxError:
        return RqlSyntaxError(self.text, position, expected)
