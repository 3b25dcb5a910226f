"""Templates: text with expressions, such as `out/{{ header:lang | fn:default('en') }}`.

`parse` reads a template once; `Template.resolve` fills it for each message. Errors in the text (an unknown placeholder or
function, a wrong argument, an unclosed quote) are found when it is parsed, so that resolving fails only for values. The
older forms `${thing:id}` and `${thing.id}` are supported; `${env:…}` and `${file:…}` are secret references and stay. The
`Scope` of a template decides which placeholders are allowed. Ditto connections, placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache

from mappings.errors import Fault, InvalidSignature, PlaceholderError, UnknownFunction, UnknownPlaceholder
from mappings.placeholders.functions import FUNCTIONS, Argument, Stage, build_stage
from mappings.placeholders.resolution import DELETED, UNRESOLVED, Resolution, ResolutionState, combine
from mappings.placeholders.values import PLACEHOLDERS, PlaceholderContext, Reader
from mappings.texts import shorten

__all__ = [
    "DELETED",
    "UNRESOLVED",
    "Expression",
    "PlaceholderContext",
    "PlaceholderError",
    "Resolution",
    "Scope",
    "Template",
    "is_operand",
    "parse",
    "parse_operand",
]


MAX_FUNCTIONS = 10
"""The most functions in one expression."""


class Scope(Enum):
    """The place of a template, and the prefixes that are allowed there."""

    COMMON = (
        "addresses and header mappings of targets, outgoing conditions",
        "header entity thing thing-json feature topic resource time request connection",
    )
    SOURCE = (
        "header mappings of sources, addresses and header mappings of their reply-targets",
        "header entity thing thing-json feature topic resource time request connection source",
    )
    MAPPER = ("options and incoming conditions of payload mappings", "header request time connection")
    AUTHORIZATION = ("the authorization context of a source", "header")
    ENFORCEMENT_INPUT = ("the enforcement input of a broker with headers and topics (MQTT 5)", "header source")
    ENFORCEMENT_INPUT_HEADER = ("the enforcement input of a broker with headers (AMQP 0.9.1, Kafka)", "header")
    ENFORCEMENT_INPUT_ADDRESS = ("the enforcement input of a broker without headers (MQTT 3.1.1)", "source")
    ENFORCEMENT_FILTER = ("enforcement filters", "entity thing policy")
    REQUEST_FILTER = (
        "filters of acknowledgement requests",
        "header entity thing feature topic resource time request connection",
    )
    LABEL = ("acknowledgement labels and a Kafka consumer group", "connection")
    EXTRA_FIELDS = ("extra fields of targets", "header entity thing thing-json feature topic resource time request")
    OPERAND = ("operands in the filter of a target", "topic resource time entity thing feature header")

    def __init__(self, place: str, prefixes: str) -> None:
        self.place = place
        self.prefixes = frozenset(prefixes.split())


@dataclass(frozen=True, slots=True)
class Expression:
    """One `{{ … }}` of a template. `names` are its placeholders, arguments included."""

    text: str
    names: frozenset[str]
    start: Reader | None = field(repr=False)
    stages: tuple[Stage, ...] = field(repr=False)

    def resolve(self, context: PlaceholderContext) -> Resolution:
        """Return the resolution of the expression.

        Raises Unresolved for values that a function cannot process.
        """
        values = self.start(context) if self.start is not None else ()
        result = Resolution(ResolutionState.RESOLVED, values) if values else UNRESOLVED
        for stage in self.stages:
            result = stage(result, context)
        return result


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: literal text and expressions, in order.

    `names` has every used placeholder, such as `thing:id`, names of headers in lower case. `is_constant`: it has none.
    """

    text: str
    parts: tuple[str | Expression, ...] = field(repr=False)
    names: frozenset[str]
    literal: Resolution | None = field(repr=False)
    header: str | None = None
    """The header of a template that is `{{ header:<name> }}` and nothing else, a frequent case."""

    def repeated(self, context: PlaceholderContext) -> str | None:
        """The text of that header in this spelling; None proves nothing: `resolve` decides."""
        if self.header is None:
            return None
        value = context.headers.get(self.header)
        return value if type(value) is str else None

    @property
    def is_constant(self) -> bool:
        return not self.names

    @property
    def prefixes(self) -> frozenset[str]:
        """The prefixes of `names`: the values that a context needs."""
        return frozenset(name.partition(":")[0] for name in self.names)

    def resolve(self, context: PlaceholderContext) -> Resolution:
        """The template filled from `context`.

        Unresolved if a part is; parts that are deleted are left out, and if all are, so is the whole. Several values of
        several parts come to every combination of them. Raises Unresolved for values that a function cannot work on.
        """
        if self.literal is not None:
            return self.literal
        parts = self.parts
        if len(parts) == 1 and isinstance(parts[0], Expression):
            return parts[0].resolve(context)
        found: list[tuple[str, ...]] = []
        for part in parts:
            if isinstance(part, str):
                found.append((part,))
                continue
            resolution = part.resolve(context)
            if resolution.state is ResolutionState.UNRESOLVED:
                return UNRESOLVED
            if resolution.values:
                found.append(resolution.values)
        return Resolution(ResolutionState.RESOLVED, tuple(combine(found))) if found else DELETED


@lru_cache(maxsize=4096)
def parse(text: str, scope: Scope = Scope.COMMON) -> Template:
    """Read a template for this scope.

    Raises UnknownPlaceholder (`placeholder:unresolved`), UnknownFunction (`placeholder:function.unknown`) or
    InvalidSignature (`placeholder:function.signature.invalid`, `placeholder:function.too.complex`), all 400.
    """
    parts = tuple(_parts(text, scope))
    expressions = [part for part in parts if isinstance(part, Expression)]
    return Template(
        text,
        parts,
        frozenset().union(*(expression.names for expression in expressions)),
        None if expressions else Resolution(ResolutionState.RESOLVED, (text,)),
        _header(parts[0]) if len(parts) == 1 and isinstance(parts[0], Expression) else None,
    )


def _header(expression: Expression) -> str | None:
    prefix, _, name = expression.text.partition(":")
    return name if prefix == "header" and not expression.stages else None


@lru_cache(maxsize=4096)
def parse_operand(text: str, scope: Scope = Scope.OPERAND) -> Template:
    """Read an expression that is written without braces, such as `topic:action`. Raises like `parse`."""
    expression = _expression(text, scope)
    return Template(expression.text, (expression,), expression.names, None)


def is_operand(text: str) -> bool:
    """Whether an expression may replace a property in the filter of a target, such as `topic:action`."""
    try:
        parse_operand(text)
    except PlaceholderError:
        return False
    return True


_QUOTED = r"""'(?:[^'\\]|\\'|\\(?!'))*'|"(?:[^"\\]|\\"|\\(?!"))*\""""
"""A text in quotes.

A quote of the same kind may be written with a backslash, which stays in the value.

The alternatives exclude each other, here and below, so that nothing is tried twice. Possessive repetitions would say the
same, but Python before 3.11.5 gets them wrong around groups.
"""

_START = re.compile(r"\{\{|\$\{(?!\{|(?:env|file):)")
_REST = {
    "{{": re.compile(rf"""((?:[^'"}}]|{_QUOTED}|\}}(?!\}}))*)\}}\}}"""),
    "${": re.compile(rf"""((?:[^'"}}]|{_QUOTED})*)\}}"""),
}
_STAGE = re.compile(rf"""\||(?:[^|'"]|{_QUOTED})+""")
_CALL = re.compile(r"fn:(?P<name>[\w-]+)\s*(?:\((?P<arguments>.*)\))?", re.DOTALL)
_ARGUMENT = re.compile(rf"""\s*(?:(?P<quoted>{_QUOTED})|(?P<placeholder>[\w-]+:[^,\s'"]+))\s*(?P<end>,|$)""")


def _parts(text: str, scope: Scope) -> Iterator[str | Expression]:
    position = 0
    while (start := _START.search(text, position)) is not None:
        if start.start() > position:
            yield text[position : start.start()]
        rest = _REST[start[0]].match(text, start.end())
        if rest is None:
            raise _unknown(text[start.start() :], "found a quote or a brace that is not closed")
        yield _expression(rest[1] if start[0] == "{{" else _convert_legacy(rest[1]), scope)
        position = rest.end()
    if position < len(text):
        yield text[position:]


def _convert_legacy(legacy: str) -> str:
    """`thing.id`, as the older form may be written, is `thing:id`."""
    prefix, dot, name = legacy.strip().partition(".")
    return f"{prefix}:{name}" if dot and prefix in PLACEHOLDERS else legacy


def _stages(text: str) -> list[str]:
    """Return the parts between pipes, respecting quotes."""
    stages = [""]
    position = 0
    while position < len(text):
        token = _STAGE.match(text, position)
        if token is None:
            raise _unknown(text, "found a quote that is not closed")
        if token[0] == "|":
            stages.append("")
        else:
            stages[-1] = token[0].strip()
        position = token.end()
    return stages


def _expression(text: str, scope: Scope) -> Expression:
    start, *calls = _stages(text)
    names: set[str] = set()
    reader: Reader | None = None
    if start.startswith("fn:"):
        calls = [start, *calls]
    else:
        reader = _placeholder(start, scope, names)
    if len(calls) > MAX_FUNCTIONS:
        raise InvalidSignature(
            Fault(
                400,
                "placeholder:function.too.complex",
                f"The expression '{shorten(text.strip())}' has {len(calls)} functions, expected at most {MAX_FUNCTIONS}.",
                "Use fewer functions.",
            )
        )
    stages = tuple([_call(call, scope, names) for call in calls])
    return Expression(text.strip(), frozenset(names), reader, stages)


def _placeholder(text: str, scope: Scope, names: set[str]) -> Reader:
    """Return the reader of `prefix:name`, and note the name."""
    prefix, colon, name = text.partition(":")
    row = PLACEHOLDERS.get(prefix)
    if row is None or not colon or prefix not in scope.prefixes:
        raise _unknown(
            text, f"expected a colon after one of {', '.join(sorted(scope.prefixes))}", prefix, scope.prefixes
        )
    reader = row.reader(name)
    if reader is None:
        raise _unknown(text, f"expected one of {', '.join(row.names)} after '{prefix}:'", name, row.names)
    names.add(text.lower() if prefix == "header" else text)
    return reader


def _call(text: str, scope: Scope, names: set[str]) -> Stage:
    call = _CALL.fullmatch(text)
    name = call["name"] if call is not None else text
    if call is None or name not in FUNCTIONS:
        raise UnknownFunction(
            Fault(
                400,
                "placeholder:function.unknown",
                f"The function '{shorten(text.strip())}' is unknown.",
                f"Expected one of {', '.join(FUNCTIONS)}, called as in fn:lower().{_hint(name, FUNCTIONS)}",
            )
        )
    return build_stage(name, _arguments(call["arguments"], scope, names))


def _arguments(text: str | None, scope: Scope, names: set[str]) -> list[Argument] | None:
    """Return the arguments of a call; None if they are no list of texts and placeholders."""
    if text is None:
        return None
    arguments: list[Argument] = []
    position = 0
    is_open = bool(text.strip())
    while is_open:
        found = _ARGUMENT.match(text, position)
        if found is None:
            return None
        if found["quoted"] is not None:
            arguments.append(_constant(found["quoted"][1:-1]))
        else:
            arguments.append(Argument(None, _placeholder(found["placeholder"], scope, names)))
        position = found.end()
        is_open = found["end"] == ","
    return arguments


def _constant(text: str) -> Argument:
    values = (text,)
    return Argument(text, lambda _: values)


def _unknown(
    text: str, reason: str, found: str = "", known: frozenset[str] | tuple[str, ...] = ()
) -> UnknownPlaceholder:
    return UnknownPlaceholder(
        Fault(
            400,
            "placeholder:unresolved",
            f"The placeholder '{shorten(text.strip())}' could not be resolved: {reason}.",
            f"Some placeholders could not be resolved. Check their spelling.{_hint(found, known)}",
        )
    )


def _hint(found: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(found[:100], list(known), 1)
    return f" Did you mean {nearest[0]}?" if nearest else ""
