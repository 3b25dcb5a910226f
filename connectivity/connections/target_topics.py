"""Topics of targets: `topic?namespaces=a,b&filter=<RQL>&extraFields=<selector>`.

The parameters are split at `&`, then at the first `=`, and each side is URL-decoded, so `&`, `+` and `%` inside a filter are
percent-encoded. Unknown parameters are ignored, as other services write them too; of a repeated one the first applies. The
filter stays text here: `connectivity.validation.validator` checks it, and the publisher parses it once.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import unquote_plus

_EVERYTHING = frozenset({"namespaces", "filter", "extraFields"})

TOPICS = {
    "_/_/things/twin/events": _EVERYTHING,
    "_/_/things/live/messages": _EVERYTHING,
    "_/_/things/live/events": _EVERYTHING,
    "_/_/things/live/commands": _EVERYTHING,
    "_/_/policies/announcements": frozenset({"namespaces"}),
    "_/_/connections/announcements": frozenset[str](),
}
"""The topics, and the parameters that each of them knows."""

EXTRA_FIELDS = (
    "thingId",
    "policyId",
    "definition",
    "attributes",
    "features",
    "_namespace",
    "_revision",
    "_created",
    "_modified",
    "_metadata",
    "_policy",
    "_context",
)
"""The first segments that a selector of `extraFields` may have."""

CONNECTION_ANNOUNCEMENTS = "_/_/connections/announcements"


class TargetTopic(NamedTuple):
    """One topic of a target. Empty `namespaces` mean every namespace."""

    topic: str
    namespaces: tuple[str, ...] = ()
    filter: str | None = None
    extra_fields: str | None = None
    ignored: tuple[str, ...] = ()
    """Names of parameters that the topic does not know."""
    repeated: tuple[str, ...] = ()
    """Names of known parameters that were repeated; the first one applies."""


class UnknownTargetTopic(ValueError):
    """An unknown topic. The text gives the expected ones; `nearest` is the most similar one."""

    def __init__(self, found: str) -> None:
        super().__init__(f"one of: {', '.join(TOPICS)}")
        self.nearest = next(iter(get_close_matches(found, TOPICS, 1)), None)


def parse_target_topic(text: str) -> TargetTopic:
    """Read one entry of a target's `topics`. Raises UnknownTargetTopic."""
    topic, _, query = text.partition("?")
    if topic not in TOPICS:
        raise UnknownTargetTopic(topic)
    parameters: dict[str, str] = {}
    ignored: list[str] = []
    repeated: list[str] = []
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if (name := unquote_plus(name)) in parameters:
            repeated.append(name)
        elif name in TOPICS[topic]:
            parameters[name] = unquote_plus(value)
        elif name:
            ignored.append(name)
    namespaces = parameters.get("namespaces", "").split(",")
    return TargetTopic(
        topic=topic,
        namespaces=tuple(filter(None, map(str.strip, namespaces))),
        filter=parameters.get("filter"),
        extra_fields=parameters.get("extraFields"),
        ignored=tuple(ignored),
        repeated=tuple(repeated),
    )
