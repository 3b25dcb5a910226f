"""Reply addresses: which ones are allowed (Streamr protocol, sessions).

The address is in the request, so its sender chooses where this service publishes. The operator allows addresses by a pattern
or by the fixed beginning of the reply-target; all others are refused, and so are invalid addresses.
"""

from __future__ import annotations

import re

from mappings.errors import Fault, UnsafeAddress
from mappings.placeholders.resolution import ResolutionState
from mappings.placeholders.template import Template
from mappings.placeholders.values import PlaceholderContext

_UNREADABLE = (
    (re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"), "a line break or another control character"),
    (re.compile(r"[\ud800-\udfff]"), "half of a surrogate pair"),
    (re.compile("\ufffd"), "a character that could not be decoded (U+FFFD)"),
)
_UNSAFE = (
    *_UNREADABLE,
    (re.compile(r"[+#]"), "a wildcard"),
    (re.compile(r"\A\$"), "a leading dollar sign, which is reserved for the broker's own addresses"),
    (re.compile(r"\.\."), "two dots in a row"),
    (re.compile(r"\A\Z|\A/|//|/\Z"), "an empty part"),
)

_PATH = "resource:path"

_ANY = re.compile("|".join(pattern.pattern for pattern, _ in _UNSAFE))


def unsafe_in_address(value: str, *, is_key: bool = False) -> str | None:
    """Return why a placeholder's value cannot be in an address, or in its key; None if it can."""
    if _ANY.search(value) is None:
        return None
    reasons = _UNREADABLE if is_key else _UNSAFE
    return next((reason for pattern, reason in reasons if pattern.search(value)), None)


def resolve_address(template: Template, context: PlaceholderContext, key_mark: str | None = None) -> str | None:
    """Return the address of a template, its first value if there are several.

    None if the template is unresolved or deleted: then nothing is published. `key_mark`: after its first occurrence follows
    a key, which may be any readable text, also an empty one. Raises UnsafeAddress for a value that an address cannot
    contain, and Unresolved for one that a function cannot process.
    """
    if template.literal is not None:
        return template.text
    if (repeated := template.repeated(context)) is not None:
        return _require_safe(repeated, f"header:{template.header}", key_mark=key_mark)
    address: list[str] = []
    is_key = False
    for part in template.parts:
        if isinstance(part, str):
            text = part
        else:
            resolution = part.resolve(context)
            if resolution.state is ResolutionState.UNRESOLVED:
                return None
            if resolution.first is None:
                continue
            text = resolution.first
            if part.text == _PATH and not is_key:
                text = _path(text)
            else:
                _require_safe(text, part.text, is_key=is_key, key_mark=key_mark)
        address.append(text)
        is_key = is_key or (key_mark is not None and key_mark in text)
    return "".join(address) if address else None


def _path(value: str) -> str:
    """Paths begin with a slash by definition: `out{{ resource:path }}` is `out/attributes/on`, or `out/`."""
    return value if value == "/" else f"/{_require_safe(value.removeprefix('/'), _PATH)}"


def _require_safe(value: str, expression: str, *, is_key: bool = False, key_mark: str | None = None) -> str:
    reason = unsafe_in_address(value, is_key=is_key)
    if reason is not None and not is_key and key_mark is not None and key_mark in value:
        before, _, key = value.partition(key_mark)
        # Without a text before it, the key is the name of a queue, which AMQP allows.
        reason = (unsafe_in_address(before) if before else None) or unsafe_in_address(key, is_key=True)
    if reason is None:
        return value
    raise UnsafeAddress(
        Fault(
            400,
            "connectivity:message.sending.failed",
            f"The value of '{{{{ {expression} }}}}' cannot be part of an address: found {reason}.",
            "Expected non-empty parts between single slashes, without wildcards, control characters or a leading '$'.",
        )
    )


MAX_ADDRESS_LENGTH = 1024
MAX_ADDRESS_PARTS = 32
_REST = "**"


class InvalidPattern(Exception):
    """A pattern that says nothing clear."""


class AddressPattern:
    """A pattern such as `streamr/*/res`.

    `*` matches one or more characters other than a slash, `**` as the last part all the rest. Matching takes time in
    proportion to the address. Raises InvalidPattern.
    """

    __slots__ = ("_parts", "_takes_rest", "text")

    def __init__(self, text: str) -> None:
        parts = text.split("/")
        self.text = text
        self._takes_rest = parts[-1] == _REST
        if self._takes_rest:
            parts.pop()
        if any(_REST in part for part in parts):
            raise InvalidPattern("'**' must be the whole pattern, or its last part after a slash")
        if len(parts) > MAX_ADDRESS_PARTS:
            raise InvalidPattern(f"found {len(parts)} parts, expected at most {MAX_ADDRESS_PARTS}")
        self._parts = [_part(part) for part in parts]

    def __repr__(self) -> str:
        return f"AddressPattern({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AddressPattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def allows(self, address: str, key_mark: str | None = None) -> bool:
        """Whether the pattern allows this reply address. `key_mark` as for `resolve_address`."""
        if not _is_suggestion(address, self.text, key_mark):
            return False
        parts = address.split("/", len(self._parts)) if self._takes_rest else address.split("/")
        if len(parts) != len(self._parts) + self._takes_rest:
            return False
        return all(pattern.fullmatch(part) is not None for pattern, part in zip(self._parts, parts, strict=False))


def has_address_prefix(address: str, prefix: str, key_mark: str | None = None) -> bool:
    """Whether the fixed beginning of the reply-target allows this reply address.

    `key_mark` as for `resolve_address`.
    """
    return address.startswith(prefix) and _is_suggestion(address, prefix, key_mark)


def is_address(text: str) -> bool:
    """Whether this is a valid address to publish to."""
    return len(text) <= MAX_ADDRESS_LENGTH and unsafe_in_address(text) is None


def _is_suggestion(address: str, written: str, key_mark: str | None) -> bool:
    """Whether an address is valid, apart from its key.

    A slash in front that an operator has written is no client's doing.
    """
    before, mark, key = address.partition(key_mark) if key_mark is not None else (address, "", "")
    if mark:
        is_readable = len(address) <= MAX_ADDRESS_LENGTH and unsafe_in_address(key, is_key=True) is None
        return is_readable and (not before or is_address(before))
    return is_address(address.removeprefix("/") if written.startswith("/") else address)


def _part(part: str) -> re.Pattern[str]:
    """One part of a pattern.

    Texts between stars are matched at their first occurrence: with one kind of star, that finds every match.
    """
    first, *rest = part.split("*")
    if not rest:
        return re.compile(re.escape(first))
    *middle, last = rest
    found = "".join(f"(?>.+?{re.escape(text)})" for text in middle)
    return re.compile(f"{re.escape(first)}{found}.+{re.escape(last)}", re.DOTALL)
