"""The subject that token integration adds to a policy entry (Ditto, policy actions)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

_PLACEHOLDER: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_ISSUER: Final = re.compile(r"[^\s:{}]+:[^:]")
_HEADER: Final = "header:"
_LABEL, _SENDER = "policy-entry:label", "request:subjectId"


def check_template(text: str) -> str:
    """Return the template of a subject. Raises ValueError for an invalid one."""
    for name in _PLACEHOLDER.findall(text):
        if name not in (_LABEL, _SENDER) and not (name.startswith(_HEADER) and name != _HEADER):
            raise ValueError(f"only the placeholders {_LABEL}, {_SENDER} and {_HEADER}NAME")
    # Without an issuer of its own, a header could make it anybody's subject.
    if _ISSUER.match(text) is None or "{" in (rest := _PLACEHOLDER.sub("", text)) or "}" in rest:
        raise ValueError("a subject with an issuer, such as integration:{{ policy-entry:label }}")
    return text


class TokenIntegration(NamedTuple):
    """The template of the subject, and how long an added subject is valid."""

    subject: str = "integration:{{ policy-entry:label }}:{{ request:subjectId }}"
    lifetime: timedelta = timedelta(hours=1)

    def subject_of(self, label: str, sender: str, headers: Mapping[str, Any]) -> str | None:
        """Return the subject for an entry; None if a header is missing."""
        known: dict[str, Any] = {_LABEL: label, _SENDER: sender}
        known |= {f"{_HEADER}{name}": value for name, value in headers.items()}
        if not all(isinstance(known.get(name), str) and known[name] for name in _PLACEHOLDER.findall(self.subject)):
            return None
        return _PLACEHOLDER.sub(lambda found: str(known[found[1]]), self.subject)


DEFAULT: Final = TokenIntegration()
