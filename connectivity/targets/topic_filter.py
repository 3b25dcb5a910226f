"""Decides which signals a target receives, by its topics, namespaces, filters and extra fields.

`TopicFilter.filter` checks the target's read permission, its topics, the namespace, and the filter with extra fields (Ditto
connections, targets). It returns the signal as the target receives it, or the reason why it does not. Many targets share
one `SignalContext`. A filter sees only what its target may read: otherwise deliveries would reveal hidden values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectivity.connections.target_topics import TargetTopic, parse_target_topic
from connectivity.targets.enrichment import ExtraFields, covers
from connectivity.targets.signal_context import S, SignalContext, SubjectView, SuppressionReason
from mappings.model.field_selector import FieldSelection, merge_objects, select
from mappings.placeholders.template import Template, is_operand, parse_operand
from spark_store import rql
from spark_store.errors import FilterTooExpensive
from spark_store.rql.ast import FieldKind, Predicate


@dataclass(frozen=True, slots=True)
class _CompiledTopic:
    """One topic of a target. `operands`: signal properties in its filter."""

    namespaces: frozenset[str]
    predicate: Predicate | None
    operands: tuple[tuple[str, Template], ...]
    extra: ExtraFields | None
    test: Callable[[Mapping[str, Any]], bool] | None
    """The predicate, compiled, unless it asks the clock."""
    weight: int
    """The number of comparisons in the predicate."""

    @classmethod
    def of(cls, topic: TargetTopic) -> _CompiledTopic:
        predicate = rql.parse(topic.filter, is_operand) if topic.filter is not None else None
        fields = rql.fields(predicate) if predicate is not None else ()
        names = dict.fromkeys(field.path[0] for field in fields if field.kind is FieldKind.OPERAND)
        return cls(
            frozenset(topic.namespaces),
            predicate,
            tuple((name, parse_operand(name)) for name in names),
            ExtraFields(topic.extra_fields) if topic.extra_fields is not None else None,
            rql.compile_predicate(predicate) if predicate is not None and not rql.names_times(predicate) else None,
            rql.weight(predicate) if predicate is not None else 0,
        )

    @property
    def order(self) -> tuple[bool, str]:
        """Topics with extra fields are asked first, in the order of their selectors."""
        return (self.extra is None, self.extra.text if self.extra is not None else "")

    def answer(self, seen: SubjectView[S], signal_context: SignalContext[S]) -> S | SuppressionReason:
        """The signal as this topic has it, or why it is kept."""
        extra, predicate = self.extra, self.predicate
        if predicate is not None and self.test is None:
            predicate = rql.resolve_times(predicate, signal_context.now())
        size = len(signal_context.signal.value or b"")
        if (
            predicate is not None
            and self.weight * size > rql.MOST_BYTES
            and _takes_long(predicate, seen.document(self.operands))
        ):
            return SuppressionReason.EXPENSIVE
        if extra is None:
            if predicate is None:
                return seen.signal
            document = seen.document(self.operands)
            passes = rql.evaluate(predicate, document) if self.test is None else self.test(document)
            return seen.signal if passes else SuppressionReason.FILTER
        selection = extra.selection(lambda: seen.context)
        if predicate is not None and self._rejects_always(predicate, seen, selection):
            return SuppressionReason.FILTER
        thing = seen.readable_thing(selection)
        if thing is None:
            return SuppressionReason.ENRICHMENT
        found = select(thing, selection)
        if predicate is not None:
            document = merge_objects(seen.document(self.operands), found)
            if self.weight > 1 and _takes_long(predicate, document):
                return SuppressionReason.EXPENSIVE
            if not rql.evaluate(predicate, document):
                return SuppressionReason.FILTER
        return seen.add_extra_fields(found)

    def _rejects_always(self, predicate: Predicate, seen: SubjectView[S], selection: FieldSelection) -> bool:
        """Whether the filter rejects the signal whatever the extra fields are."""
        document: Mapping[str, Any] = seen.document(self.operands)
        return rql.partial_evaluate(predicate, document, lambda field: covers(selection, field)) is False


def _takes_long(predicate: Predicate, document: Mapping[str, Any]) -> bool:
    """Whether the evaluation would hold other work for long."""
    try:
        rql.require_quick([predicate], document)
    except FilterTooExpensive:
        return True
    return False


class TopicFilter:
    """The interest of one target.

    Raises UnknownTargetTopic, QueryError, InvalidSelector, PlaceholderError for topics that cannot be understood; a
    connection document with such a one is refused before.
    """

    def __init__(self, topics: Sequence[str], subjects: Sequence[str]) -> None:
        self.subjects = tuple(subjects)
        self._topics: dict[str, list[_CompiledTopic]] = {}
        for text in topics:
            topic = parse_target_topic(text)
            self._topics.setdefault(topic.topic, []).append(_CompiledTopic.of(topic))
        for topics_by_name in self._topics.values():
            topics_by_name.sort(key=lambda compiled_topic: compiled_topic.order)

    def __contains__(self, topic: str) -> bool:
        """Whether the target has topics for signals such as `_/_/things/twin/events`."""
        return topic in self._topics

    def wants(self, topic: str, namespace: str) -> bool:
        """Whether the target receives signals of a topic without filters from a namespace."""
        return any(
            not compiled_topic.namespaces or namespace in compiled_topic.namespaces
            for compiled_topic in self._topics.get(topic, ())
        )

    def filter(self, signal_context: SignalContext[S]) -> S | SuppressionReason:
        """Return the readable signal with its extra fields, or the reason why it is not sent."""
        topics_by_name = self._topics.get(signal_context.topic) if signal_context.topic is not None else None
        if topics_by_name is None:
            return SuppressionReason.TOPIC
        seen = signal_context.visible_to(self.subjects)
        if isinstance(seen, SuppressionReason):
            return seen
        namespace = signal_context.signal.entity.namespace
        reason = SuppressionReason.NAMESPACE
        for compiled_topic in topics_by_name:
            if not compiled_topic.namespaces or namespace in compiled_topic.namespaces:
                answer = compiled_topic.answer(seen, signal_context)
                if answer is SuppressionReason.EXPENSIVE:
                    reason = answer
                elif answer is not SuppressionReason.FILTER:
                    return answer
                elif reason is not SuppressionReason.EXPENSIVE:
                    reason = answer
        return reason
