"""Generates the page of the expression language from the tables that implement it.

The page has every placeholder, every place where templates are allowed, and every function with its example.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from mappings.placeholders.functions import FUNCTIONS, OPERATORS, Example, Function
from mappings.placeholders.resolution import MAX_CHARACTERS, MAX_VALUES, ResolutionState
from mappings.placeholders.template import MAX_FUNCTIONS, Scope
from mappings.placeholders.values import PLACEHOLDERS
from tools.docs.markdown import cell

_INTRODUCTION = f"""# Placeholders and functions

Addresses, header mappings and enforcement of a connection are templates: text with expressions in double braces. An
expression begins with a placeholder or a function, followed by functions, each after a pipe.

```text
out/{{{{ thing:namespace }}}}/{{{{ header:lang | fn:lower() | fn:default('en') }}}}
```

An expression has one of three outcomes:

| outcome | meaning | in an address | in a header |
|---|---|---|---|
| resolved | one value or several | the first value is used | the first value is used |
| unresolved | there is no value; `fn:default` can replace it | the message is not sent | the header is left out |
| deleted | `fn:delete` was called | the message is not sent | the header is left out |

A template joins its texts and the results of its expressions. If one part is unresolved, the whole template is unresolved.
The template leaves out deleted parts; it is itself deleted only if no other part remains. If several parts have several
values, the result has every combination.

Texts in arguments are in single or double quotes. A quote of the same kind inside the text needs a backslash before it; the
backslash remains in the text. There is no way to write `{{{{` as text. `${{thing:id}}` is an older form of
`{{{{ thing:id }}}}`.

An expression has at most {MAX_FUNCTIONS} functions, {MAX_VALUES:,} values and {MAX_CHARACTERS:,} characters.
"""

_FUNCTIONS = """## Functions

A function changes each value separately. It passes the outcomes *unresolved* and *deleted* on, unless its description says
otherwise.
"""

_ERRORS = """## Errors

The service finds errors in a template when it validates the connection, and returns them with status 400.

| code | meaning |
|---|---|
| `placeholder:unresolved` | a placeholder is unknown or not allowed at this place; or a required value is missing |
| `placeholder:function.unknown` | an unknown function |
| `placeholder:function.signature.invalid` | a function was called with invalid arguments |
| `placeholder:function.too.complex` | an expression has too many functions |
"""


def placeholders_page() -> str:
    """The whole page, in Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            _placeholders(),
            _places(),
            _FUNCTIONS,
            *[_function(row) for row in FUNCTIONS.values()],
            _ERRORS.rstrip(),
            "",
        ]
    )


def _placeholders() -> str:
    rows = [f"| `{row.prefix}:` | {_codes(row.names)} | {cell(row.meaning)} |" for row in PLACEHOLDERS.values()]
    return _section("## Placeholders", "| prefix | names | meaning |\n|---|---|---|", rows)


def _places() -> str:
    rows = [
        f"| {scope.place} | {_codes(prefix for prefix in PLACEHOLDERS if prefix in scope.prefixes)} |"
        for scope in Scope
    ]
    return _section("## Places", "| place | prefixes |\n|---|---|", rows)


def _function(row: Function) -> str:
    lines = [f"### `fn:{row.name}`", "", _codes(row.calls), "", row.meaning, ""]
    if row.name == "filter":
        lines += [
            f"Operators: {_codes(OPERATORS)}. In a pattern of `like`, `*` is any run of characters, `?` one character, and "
            "`|` separates alternatives; `exists` compares with `'true'` or `'false'`.",
            "",
        ]
    lines += ["```text", *_example(row.example), "```", ""]
    return "\n".join(lines)


def _example(example: Example) -> list[str]:
    headers = json.dumps(dict(example.headers), ensure_ascii=False)
    if isinstance(example.result, ResolutionState):
        result = example.result.value
    else:
        result = json.dumps(example.result[0] if len(example.result) == 1 else example.result, ensure_ascii=False)
    return [example.expression, f"headers {headers}", f"gives   {result}"]


def _section(heading: str, head: str, rows: list[str]) -> str:
    return "\n".join([heading, "", head, *rows, ""])


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
