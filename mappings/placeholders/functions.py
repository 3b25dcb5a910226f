"""The functions of expressions: `fn:lower()` etc., one small pure function each.

A function is built once, when its template is parsed: the builder checks the arguments, raises InvalidSignature for invalid
ones, and returns the stage that runs for each message. A stage changes each value by itself and passes *unresolved* and
*deleted* on, unless documented otherwise. The decorator adds a function to the table `FUNCTIONS`, with its documentation and
an example that the tests run. Ditto connections, placeholder functions.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeAlias
from urllib.parse import quote_plus, unquote_plus

from mappings.errors import Fault, InvalidSignature
from mappings.placeholders.format import parse_format
from mappings.placeholders.resolution import (
    DELETED,
    UNRESOLVED,
    Resolution,
    ResolutionState,
    require_within_limits,
    resolution_of,
    unresolved,
)
from mappings.placeholders.split_pattern import splitter
from mappings.placeholders.values import PlaceholderContext, Reader

Stage: TypeAlias = Callable[[Resolution, PlaceholderContext], Resolution]
"""One function of a parsed expression. Raises Unresolved for values that it cannot process."""


class Argument(NamedTuple):
    """One argument: a quoted text, or a placeholder (then `constant` is None)."""

    constant: str | None
    read: Reader


class Example(NamedTuple):
    """An expression, the headers it is resolved with, and its result: values, or a state."""

    expression: str
    headers: Mapping[str, object]
    result: tuple[str, ...] | ResolutionState


class Function(NamedTuple):
    """A row of the table: signatures, description, example, and the builder."""

    name: str
    calls: tuple[str, ...]
    meaning: str
    example: Example
    build: Callable[[Sequence[Argument]], Stage]


MAX_WORK = 1 << 24
"""The most steps that one comparison of `fn:filter` may take."""

_EACH = 16
"""The cost of a value in addition to its length: the call for two values takes as long as 256 steps."""

_COMPILED = 1 << 12
"""The cost of a character of a pattern that is not constant."""

FUNCTIONS: dict[str, Function] = {}
"""Every function by its name, in the order of the documentation."""


def _invalid(name: str, found: str) -> InvalidSignature:
    return InvalidSignature(
        Fault(
            400,
            "placeholder:function.signature.invalid",
            f"The function 'fn:{name}' was called with invalid arguments: {found}.",
            f"Expected {' or '.join(FUNCTIONS[name].calls)}.",
        )
    )


def build_stage(name: str, arguments: Sequence[Argument] | None) -> Stage:
    """Return the stage for a call of a function; None for unreadable arguments.

    Raises InvalidSignature with `placeholder:function.signature.invalid`.
    """
    if arguments is None:
        raise _invalid(name, "found arguments that are not a list of quoted texts and placeholders in parentheses")
    try:
        return FUNCTIONS[name].build(arguments)
    except ValueError as error:
        raise _invalid(name, str(error)) from error


_Builder: TypeAlias = Callable[[Sequence[Argument]], Stage]


def _function(name: str, arguments: str, meaning: str, example: Example) -> Callable[[_Builder], _Builder]:
    """Add the decorated builder to the table.

    A builder raises ValueError for invalid arguments. `arguments` are written as in a call, with ` or ` between signatures.
    """
    calls = tuple(f"fn:{name}{way}" for way in arguments.split(" or "))

    def register(build: _Builder) -> _Builder:
        FUNCTIONS[name] = Function(name, calls, meaning, example, build)
        return build

    return register


def _count(arguments: Sequence[Argument], *expected: int) -> None:
    if len(arguments) not in expected:
        raise ValueError(f"found {len(arguments)} arguments, expected {' or '.join(map(str, expected))}")


def _constant(argument: Argument) -> str:
    if argument.constant is None:
        raise ValueError("found a placeholder, expected a quoted text")
    return argument.constant


def _only_text(arguments: Sequence[Argument]) -> str:
    _count(arguments, 1)
    return _constant(arguments[0])


def _each(change: Callable[[str], str | None]) -> Stage:
    """Return a stage that changes each value by itself and leaves out those that become None."""

    def stage(piped: Resolution, _: PlaceholderContext) -> Resolution:
        if piped.state is not ResolutionState.RESOLVED:
            return piped
        return resolution_of(changed for value in piped.values if (changed := change(value)) is not None)

    return stage


def _plain(arguments: Sequence[Argument], change: Callable[[str], str]) -> Stage:
    """A stage for a function without arguments."""
    _count(arguments, 0)
    return _each(change)


@lru_cache(maxsize=256)
def _like(pattern: str) -> re.Pattern[str]:
    """`*` for any run, `?` for one character, `|` between alternatives.

    The translation gives back nothing, so that a pattern with many stars stays linear.
    """
    alternatives = (fnmatch.translate(alternative.replace("[", "[[]")) for alternative in pattern.split("|"))
    return re.compile("|".join(alternatives))


OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "eq": lambda value, compared: value == compared,
    "ne": lambda value, compared: value != compared,
    "like": lambda value, compared: _like(compared).match(value) is not None,
    "exists": lambda value, compared: bool(value) == (compared.lower() == "true"),
}
"""The operators of `fn:filter`: found value, compared value → whether they fit."""


def _operator(argument: Argument) -> Callable[[str, str], bool]:
    name = _constant(argument)
    if name not in OPERATORS:
        raise ValueError(f"found the operator '{name}', expected one of {', '.join(OPERATORS)}")
    return OPERATORS[name]


@_function(
    "filter",
    "(value, 'operator', compared) or ('operator', compared) or (value, 'exists')",
    "Keeps the piped values if the comparison is true for at least one combination of values; otherwise there is no "
    "value. With two arguments, the function compares each piped value separately. The function treats a placeholder "
    "without a value as the empty text.",
    Example("{{ header:lang | fn:filter('like','de*|en') }}", {"lang": "de-AT"}, ("de-AT",)),
)
def _filter(arguments: Sequence[Argument]) -> Stage:
    _count(arguments, 2, 3)
    if len(arguments) == 2 and arguments[1].constant != "exists":
        return _filter_piped(*arguments)
    operator = _operator(arguments[1])
    read_value = arguments[0].read
    read_compared: Reader = arguments[2].read if len(arguments) == 3 else lambda _: ("true",)
    each = _cost_of_compiling(arguments[1], arguments[-1])

    def stage(piped: Resolution, context: PlaceholderContext) -> Resolution:
        if piped.state is not ResolutionState.RESOLVED:
            return piped
        return piped if _some(operator, read_value(context), read_compared(context), each) else UNRESOLVED

    return stage


def _cost_of_compiling(operator: Argument, compared: Argument) -> int:
    """Return the cost of a compared character in addition to the comparison."""
    return _COMPILED if operator.constant == "like" and compared.constant is None else 0


def _filter_piped(name: Argument, compared: Argument) -> Stage:
    operator, each = _operator(name), _cost_of_compiling(name, compared)

    def stage(piped: Resolution, context: PlaceholderContext) -> Resolution:
        if piped.state is not ResolutionState.RESOLVED:
            return piped
        found, wanted = _to_compare(piped.values, compared.read(context), each)
        kept = {value for other in wanted for value in found if operator(value, other)}
        return resolution_of(value for value in piped.values if value in kept)

    return stage


def _some(operator: Callable[[str, str], bool], values: tuple[str, ...], compared: tuple[str, ...], each: int) -> bool:
    found, wanted = _to_compare(values, compared, each)
    # Each pattern with all values, so that it is compiled once.
    return any(operator(value, other) for other in wanted for value in found)


def _to_compare(values: tuple[str, ...], compared: tuple[str, ...], each: int) -> tuple[Iterable[str], Iterable[str]]:
    """Return the values to compare with each other, each once. Raises Unresolved for too many.

    Comparing with a pattern takes up to the product of both lengths, for each combination.
    """
    found, wanted = dict.fromkeys(values or ("",)), dict.fromkeys(compared or ("",))
    if _weight(found) * _weight(wanted) + each * sum(map(len, wanted)) > MAX_WORK:
        raise unresolved(f"found {len(found)} and {len(wanted)} values, which are too long for a comparison")
    return found, wanted


def _weight(values: Collection[str]) -> int:
    return _EACH * len(values) + sum(map(len, values))


@_function(
    "default",
    "('text') or (placeholder)",
    "Replaces an unresolved value.",
    Example("{{ header:prio | fn:default('3') }}", {}, ("3",)),
)
def _default(arguments: Sequence[Argument]) -> Stage:
    _count(arguments, 1)
    read = arguments[0].read

    def stage(piped: Resolution, context: PlaceholderContext) -> Resolution:
        return resolution_of(read(context)) if piped.state is ResolutionState.UNRESOLVED else piped

    return stage


@_function(
    "delete",
    "()",
    "Deletes the result for any piped value: the service leaves out the header, or does not send the message. "
    "`fn:default` does not replace the deleted result; `fn:split` and `fn:join` make it unresolved, and `fn:format` makes "
    "it the empty text.",
    Example("{{ header:lang | fn:delete() }}", {"lang": "de"}, ResolutionState.DELETED),
)
def _delete(arguments: Sequence[Argument]) -> Stage:
    _count(arguments, 0)
    return lambda _piped, _context: DELETED


@_function(
    "substring-before",
    "('text')",
    "Returns the text before the first occurrence of the argument; the result is unresolved if the argument does not "
    "occur.",
    Example("{{ header:path | fn:substring-before(':') }}", {"path": "a:b:c"}, ("a",)),
)
def _substring_before(arguments: Sequence[Argument]) -> Stage:
    mark = _only_text(arguments)
    return _each(lambda value: value[:at] if (at := value.find(mark)) >= 0 else None)


@_function(
    "substring-after",
    "('text')",
    "Returns the text after the first occurrence of the argument; the result is unresolved if the argument does not "
    "occur.",
    Example("{{ header:path | fn:substring-after(':') }}", {"path": "a:b:c"}, ("b:c",)),
)
def _substring_after(arguments: Sequence[Argument]) -> Stage:
    mark = _only_text(arguments)
    return _each(lambda value: value[at + len(mark) :] if (at := value.find(mark)) >= 0 else None)


@_function(
    "replace",
    "('from', 'to')",
    "Replaces every occurrence of the first argument by the second. Both arguments may be placeholders; a placeholder "
    "without a value is the empty text.",
    Example("{{ header:path | fn:replace('.','/') }}", {"path": "a.b.c"}, ("a/b/c",)),
)
def _replace(arguments: Sequence[Argument]) -> Stage:
    _count(arguments, 2)
    old, new = arguments

    def stage(piped: Resolution, context: PlaceholderContext) -> Resolution:
        if piped.state is not ResolutionState.RESOLVED:
            return piped
        found = next(iter(old.read(context)), "")
        put = next(iter(new.read(context)), "")
        return resolution_of(_substitute(value, found, put) for value in piped.values)

    return stage


def _substitute(value: str, found: str, put: str) -> str:
    growth = len(put) - len(found)
    if growth > 0:
        require_within_limits(1, len(value) + growth * value.count(found))
    return value.replace(found, put)


@_function(
    "split",
    "('separator')",
    "Splits each value into several. The separator is a regular expression without backtracking: its repetitions are "
    "possessive. The result has no empty parts at the end.",
    Example("{{ header:tags | fn:split(',') }}", {"tags": "a,b"}, ("a", "b")),
)
def _split(arguments: Sequence[Argument]) -> Stage:
    split = splitter(_only_text(arguments))

    def stage(piped: Resolution, _: PlaceholderContext) -> Resolution:
        return resolution_of(split(piped.values))

    return stage


@_function(
    "join",
    "('delimiter')",
    "Joins all values into one.",
    Example("{{ header:tags | fn:split(',') | fn:join(';') }}", {"tags": "a,b"}, ("a;b",)),
)
def _join(arguments: Sequence[Argument]) -> Stage:
    delimiter = _only_text(arguments)

    def stage(piped: Resolution, _: PlaceholderContext) -> Resolution:
        if not piped.values:
            return UNRESOLVED
        require_within_limits(1, sum(map(len, piped.values)) + len(delimiter) * (len(piped.values) - 1))
        return resolution_of([delimiter.join(piped.values)])

    return stage


_WHITE_SPACE = "".join(map(chr, range(33)))
"""The characters that `fn:trim` removes: the space and every control character before it."""


@_function(
    "lower", "()", "Converts to lower case.", Example("{{ header:tier | fn:lower() }}", {"tier": "Gold"}, ("gold",))
)
def _lower(arguments: Sequence[Argument]) -> Stage:
    return _plain(arguments, str.lower)


@_function(
    "upper", "()", "Converts to upper case.", Example("{{ header:tier | fn:upper() }}", {"tier": "Gold"}, ("GOLD",))
)
def _upper(arguments: Sequence[Argument]) -> Stage:
    return _plain(arguments, str.upper)


@_function(
    "trim",
    "()",
    "Removes white space at both ends.",
    Example("{{ header:tier | fn:trim() }}", {"tier": "  gold "}, ("gold",)),
)
def _trim(arguments: Sequence[Argument]) -> Stage:
    return _plain(arguments, lambda value: value.strip(_WHITE_SPACE))


@_function(
    "url-encode",
    "()",
    "Encodes the value as in URL-encoded web forms: UTF-8, percent-encoded, with `+` for a space.",
    Example("{{ header:name | fn:url-encode() }}", {"name": "a b/c"}, ("a+b%2Fc",)),
)
def _url_encode(arguments: Sequence[Argument]) -> Stage:
    return _plain(arguments, lambda value: quote_plus(value, safe="*", errors="replace").replace("~", "%7E"))


@_function(
    "url-decode",
    "()",
    "Decodes a value that is encoded as in URL-encoded web forms.",
    Example("{{ header:name | fn:url-decode() }}", {"name": "a+b%2Fc"}, ("a b/c",)),
)
def _url_decode(arguments: Sequence[Argument]) -> Stage:
    return _plain(arguments, unquote_plus)


@_function(
    "base64-encode",
    "()",
    "Encodes the UTF-8 bytes in Base64.",
    Example("{{ header:greeting | fn:base64-encode() }}", {"greeting": "hi"}, ("aGk=",)),
)
def _base64_encode(arguments: Sequence[Argument]) -> Stage:
    return _plain(arguments, lambda value: base64.b64encode(value.encode(errors="replace")).decode("ascii"))


@_function(
    "base64-decode",
    "()",
    "Decodes Base64 to UTF-8 text; a value that is not Base64 is an error.",
    Example("{{ header:greeting | fn:base64-decode() }}", {"greeting": "aGk="}, ("hi",)),
)
def _base64_decode(arguments: Sequence[Argument]) -> Stage:
    return _plain(arguments, _from_base64)


def _from_base64(value: str) -> str:
    padded = value if value.endswith("=") else value + "=" * (-len(value) % 4)
    try:
        return base64.b64decode(padded, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError) as error:
        raise unresolved(f"found a value of {len(value)} characters that is not Base64") from error


@_function(
    "format",
    "('template')",
    "Formats each value that is a JSON object by a template: `{name}` for a member, `{/a/b}` for a pointer, "
    "`{#list}…{/list}` once for each element, `{.}` for the element itself, `\\{` and `\\}` for braces. The function "
    "leaves out values that are not objects. If no value remains, the result is the empty text.",
    Example("{{ header:port | fn:format('{id}:{speed}') }}", {"port": {"id": "p1", "speed": 3}}, ("p1:3",)),
)
def _format(arguments: Sequence[Argument]) -> Stage:
    write = parse_format(_only_text(arguments))

    def stage(piped: Resolution, _: PlaceholderContext) -> Resolution:
        if piped.state is ResolutionState.UNRESOLVED:
            return UNRESOLVED
        written = resolution_of(chain.from_iterable(map(write, piped.values)))
        return written if written.values else resolution_of(("",))

    return stage
