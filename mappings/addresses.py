"""Addresses that come out of templates, and what may not get into them.

A reply address often comes from whoever sent the command, by way of a header. Published to as it is, a value such as
`$SYS/…`, `devices/#` or `a\\r\\nb` would reach places that the operator did not mean. So the values that expressions bring
in are judged, one by one; the text that the operator wrote around them is not.
"""

from __future__ import annotations

import re

from mappings.errors import Fault, UnsafeAddress
from mappings.placeholder_values import PlaceholderContext
from mappings.placeholders import Template
from mappings.resolution import State

_UNSAFE = (
    (re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"), "a line end or another control character"),
    (re.compile(r"[\ud800-\udfff]"), "half of a character"),
    (re.compile("\ufffd"), "a character that could not be read"),
    (re.compile(r"[+#]"), "a wildcard"),
    (re.compile(r"\A\$"), "a dollar sign in front, which is kept for the broker's own addresses"),
    (re.compile(r"\.\."), "two dots in a row"),
    (re.compile(r"\A\Z|\A/|//|/\Z"), "an empty part"),
)

_PATH = "resource:path"

_ANY = re.compile("|".join(pattern.pattern for pattern, _ in _UNSAFE))


def unsafe_in_address(value: str) -> str | None:
    """What makes a placeholder's value unfit for an address, in words; None for a value that is fit."""
    if _ANY.search(value) is None:
        return None
    return next(reason for pattern, reason in _UNSAFE if pattern.search(value))


def resolve_address(template: Template, context: PlaceholderContext) -> str | None:
    """The address that a template comes to, its first value where there are several.

    None where the template is unresolved or deleted: then nothing is to be published. Raises UnsafeAddress for a value
    that must not be part of an address, and Unresolved for one that a function cannot work on.
    """
    if template.literal is not None:
        return template.text
    if (repeated := template.repeated(context)) is not None:
        return _judged(repeated, f"header:{template.header}")
    address: list[str] = []
    for part in template.parts:
        if isinstance(part, str):
            address.append(part)
            continue
        resolution = part.resolve(context)
        if resolution.state is State.UNRESOLVED:
            return None
        if resolution.first is not None:
            is_path = part.text == _PATH
            address.append(_path(resolution.first) if is_path else _judged(resolution.first, part.text))
    return "".join(address) if address else None


def _path(value: str) -> str:
    """The slash in front of every path is no client's doing: `out{{ resource:path }}` is `out/attributes/on`, or `out/`."""
    return value if value == "/" else f"/{_judged(value.removeprefix('/'), _PATH)}"


def _judged(value: str, expression: str) -> str:
    reason = unsafe_in_address(value)
    if reason is None:
        return value
    raise UnsafeAddress(
        Fault(
            400,
            "connectivity:message.sending.failed",
            f"The value of '{{{{ {expression} }}}}' cannot be part of an address: found {reason}.",
            "Expected are parts between single slashes, without wildcards, control characters or a leading '$'.",
        )
    )
