from __future__ import annotations

from collections.abc import Mapping

from mappings.placeholders.template import Scope, Template, parse
from mappings.placeholders.values import PlaceholderContext


class HeaderMapping:
    """Which header is filled from which template, read once.

    Raises PlaceholderError for a template that is not understood. `names` are the placeholders in all of them.
    """

    __slots__ = ("_constants", "_templates", "mapping", "names")

    def __init__(self, mapping: Mapping[str, str], scope: Scope = Scope.COMMON) -> None:
        templates = {name: parse(text, scope) for name, text in mapping.items()}
        self.mapping = dict(mapping)
        self.names: frozenset[str] = frozenset().union(*[template.names for template in templates.values()])
        self._constants = {name: template.text for name, template in templates.items() if template.literal is not None}
        self._templates: list[tuple[str, Template]] = [
            (name, template) for name, template in templates.items() if template.literal is None
        ]

    @property
    def is_literal(self) -> bool:
        """Whether the headers are the same for all messages."""
        return not self._templates

    def __repr__(self) -> str:
        return f"HeaderMapping({self.mapping!r})"

    def __bool__(self) -> bool:
        return bool(self.mapping)

    def apply(self, context: PlaceholderContext) -> dict[str, str]:
        """Return the resolved headers, without unresolved or deleted ones; the first of several values.

        Raises Unresolved for values that a function cannot process.
        """
        result = self._constants.copy()
        for name, template in self._templates:
            value = template.repeated(context)
            if value is None:
                value = template.resolve(context).first
            if value is not None:
                result[name] = value
        return result
