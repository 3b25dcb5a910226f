"""Regular expressions of the published JSON Schema, for texts with placeholders or references.

They are ECMA 262, as JSON Schema requires. A pattern accepts every text that `validate` accepts; what needs a parser (the
functions of a placeholder, a filter) is left to `validate`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mappings.placeholders.functions import FUNCTIONS
from mappings.placeholders.template import Scope

WHITE = r"[\s\x1c-\x1f\x85]"
"""A space as Python knows it; JSON Schema knows fewer."""

_QUOTED = r"""(?:'(?:[^'\\]|\\'|\\(?!'))*'|"(?:[^"\\]|\\"|\\(?!"))*")"""
_START = r"(?:\{\{|\$\{(?!\{|env:|file:))"
_BODY = rf"""(?:[^'"}}|]|{_QUOTED}|\}}(?!\}}))*"""
_CALL = rf"fn:(?:{'|'.join(FUNCTIONS)})(?![\w-]){_BODY}"
_CALLS = rf"{_CALL}(?:\|{WHITE}*{_CALL})*"
_OLDER_FORM = rf"""\$\{{(?!\{{|env:|file:)(?:[^'"}}]|{_QUOTED})*\}}"""
_MASK = r"^\*{5}$"
_CONNECTION_ID = rf"(?:\{{\{{{WHITE}*connection:id{WHITE}*\}}\}}|\$\{{{WHITE}*connection:id{WHITE}*\}})"
_LABEL_CHARACTER = rf"(?:{_CONNECTION_ID}|[a-zA-Z0-9_:-])"
_HOST = r"(?:[^ /?#@:\[\]]+|\[[^ /?#@\[\]]+\])"
_PORT = r"0*(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"

REFERENCE = r"\$\{(?:env|file):[^{}]*\}"
"""A reference to a secret."""

WITHOUT_PLACEHOLDERS = rf"(?![\s\S]*{_START})"
"""The beginning of the pattern of an address without placeholders."""

LABEL = rf"^{_LABEL_CHARACTER}{{1,100}}$"
OWN_LABEL = rf"^{_LABEL_CHARACTER}+:{_LABEL_CHARACTER}+$"
"""A label that may begin with the connection's ID and a colon."""

CONDITION = rf"^{WHITE}*{_CALLS}$"
"""A chain of functions."""

GROUP_ID = rf"^(?:{_CONNECTION_ID}|[a-zA-Z0-9._-])+$"


def any_case(text: str) -> str:
    """Return the pattern of a text in lower, upper or mixed case."""
    return "".join(f"[{it.lower()}{it.upper()}]" if it.isalpha() else it for it in text)


def uri(schemes: Iterable[str]) -> str:
    """Return the pattern of `scheme://[user:password@]host:port[/path]`; parts may be references."""
    rest = rf"(?:(?:[^\s/?#@]*@)?{_HOST}:{_PORT}(?:/[^\s?#]*)?$|[\s\S]*{REFERENCE})"
    return rf"^{REFERENCE}|{scheme(schemes)}{rest}"


def scheme(schemes: Iterable[str]) -> str:
    """Return the pattern of addresses with these schemes."""
    return rf"^(?:{'|'.join(map(any_case, schemes))})://"


def part(scope: Scope, literal: str = r"[\s\S]") -> str:
    """Return the pattern of one such character, or of an expression that is known in this scope."""
    placeholder = rf"(?:{'|'.join(sorted(scope.prefixes))}):{_BODY}(?:\|{WHITE}*{_CALLS})?"
    expression = rf"\{{\{{{WHITE}*(?:{placeholder}|{_CALLS})\}}\}}"
    return rf"(?:{expression}|{_OLDER_FORM}|(?!{_START}){literal})"


def template(scope: Scope) -> str:
    """Return the pattern of a template."""
    return f"^{part(scope)}*$"


def pem(label: str) -> str:
    """Return the pattern of PEM texts with this label, of a reference, and of the mask."""
    return rf"-----BEGIN {label}-----|{REFERENCE}|{_MASK}"
