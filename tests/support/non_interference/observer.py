"""The observations of subjects in a scenario: their responses and signals, over all protocols.

    learned = await observe(scenario, inquiry)
    learned["3 retrieve …"]

The scenario runs in this process: real dispatcher, journal, search index and session handlers, over a link that confirms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from connectivity.security.on_behalf import BehalfAudit
from connectivity.subscriptions.search_feed import SearchOptions
from connectivity.subscriptions.search_requests import SearchRequests
from connectivity.transports.base import OutboundMessage
from connectivity.twins.context import TwinLimits
from connectivity.twins.decider import Decider
from mappings.ids import EntityType
from mappings.reactive_streams_io.frames import SubscribeFrame, encode
from mappings.streamr.auth_keys import fingerprint
from tests.support.in_process.service import ConnectionHarness, pause, source, until
from tests.support.non_interference.folded_past import open_past_searches
from tests.support.non_interference.scenarios import MESSAGE, ROOT, SUBJECTS, Scenario, Step
from tests.support.temporary_journal import TemporaryJournal

DITTO, STREAMR, RSIO = range(3)
"""The indexes of the sources of the subjects."""
ANSWERS = "answers"
"""The reply address of the Ditto protocol."""
_WRITERS = {name: number for number, name in enumerate((ROOT, *SUBJECTS))}
_SUBSCRIPTION = re.compile(r'"subscriptionId":"([^"]+)"')
_ASKED = {"address": "{{ header:reply-to }}"}
_STORED = ("put-metadata", "content-type")
"""The headers of commands that are stored with their events. They differ between the scenarios."""
KEY = "K"
"""The key of a Streamr client, whose own subject is in no policy."""

Learned = dict[str, list[str]]
"""The observations, by question and by phase of watching."""


class Question(Protocol):
    """A request of a subject. Its `repr` is part of the failure message."""

    async def put(self, observer: Observer) -> None:
        """Send the request and wait for the whole response."""


@dataclass(frozen=True)
class Inquiry:
    """The targets' topics and the live subscriptions of the subjects, and their requests afterward."""

    topics: Sequence[Sequence[str]] = ()
    streamr: Sequence[str] = ()
    rsio: Sequence[str] = ()
    questions: Sequence[Question] = field(default_factory=list)


class Message(NamedTuple):
    """A message as its receiver gets it."""

    address: str
    headers: Mapping[str, str]
    payload: bytes

    @classmethod
    def of(cls, sent: OutboundMessage) -> Message:
        return cls(sent.address, sent.envelope.headers, sent.envelope.payload)


class Observer(ConnectionHarness):
    """A service with the connections of subjects and writers, and one with the subjects' targets."""

    def __init__(self, subjects: Sequence[str]) -> None:
        streamr = {"streams": {}, "authKeys": {"watcher": fingerprint(KEY)}}
        super().__init__(
            source("ditto", *subjects, replyTarget={"address": ANSWERS}),
            source("streamr", *subjects, payloadMapping=["streamr"], replyTarget=_ASKED),
            source("rsio", *subjects, payloadMapping=["rsio"], replyTarget=_ASKED),
            mappingDefinitions={
                "streamr": {"mappingEngine": "Streamr", "options": streamr},
                "rsio": {"mappingEngine": "ReactiveStreamsIO", "options": {}},
            },
            journal=TemporaryJournal(),
            decider=lambda store: Decider(store, now=lambda: self.now, limits=TwinLimits(historical_headers=_STORED)),
        )
        self.subjects = tuple(subjects)
        # Events are not sent to the connection that caused them.
        self.writers = ConnectionHarness(*(source(name, name) for name in _WRITERS), beside=self, id="writers")
        self.watchers: ConnectionHarness | None = None
        self._written_steps = 0
        self.requests = SearchRequests(
            self.searching,
            lambda: self.now,
            page_bytes=1 << 20,
            count_timeout=60.0,
            audit=BehalfAudit(lambda: self.now, _note),
        )
        # A slow page on a busy machine must not be a difference.
        self.searching.options = SearchOptions(budget=60.0)
        self.past = open_past_searches(self, lambda: self.now)
        self.learned: Learned = {}
        self._sent = 0
        self._numbers = 0
        self._seen: set[int] = set()
        self._remembered: list[str] = []

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def end(self) -> None:
        """Close all connections."""
        self.past.close()
        for connection in (self.writers, self.watchers):
            if connection is not None:
                await connection.host.close()
                ConnectionHarness.made.remove(connection)
        await self.close()
        ConnectionHarness.made.remove(self)

    # incoming

    def say(self, payload: bytes, source: int, reply_to: str) -> None:
        """Deliver a message with this reply address."""
        self._sent += 1
        self.deliver(payload, source=source, reply_to=reply_to, correlation_id=reply_to)

    async def settle(self) -> None:
        """Wait until all deliveries so far are settled."""
        await until(lambda: len(self.outcomes) == self._sent)
        await until(lambda: len(self.writers.outcomes) == self._written_steps)

    async def carry_out(self, step: Step) -> None:
        self.now = step.at
        self._written_steps += 1
        self.writers.deliver(payload_of(step), source=_WRITERS[step.by])

    async def watch(self, inquiry: Inquiry) -> None:
        """Open the targets and live subscriptions."""
        await self.settle()
        if inquiry.topics:
            self.watchers = ConnectionHarness(beside=self, id="watchers", targets=self._targets(inquiry.topics))
            await self.watchers.follow()
        for name in inquiry.streamr:
            request = {"type": "subscribe", "stream": name, "authKey": KEY}
            self.say(json.dumps(request).encode(), STREAMR, f"watched/streamr/{name}")
        for number, name in enumerate(inquiry.rsio):
            self.say(rsio_subscription(name), RSIO, f"watched/rsio/{number}")
        await self.settle()
        await self.calm()

    def _targets(self, topics: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        return [
            {"address": f"target-{number}", "topics": list(each), "authorizationContext": list(self.subjects)}
            for number, each in enumerate(topics)
        ]

    async def calm(self) -> None:
        """Wait until all events are sent to targets and live subscriptions."""
        await self.settle()
        newest = self.journal.newest_seq()
        await until(lambda: all(it.judged == newest for it in self.event_publisher.of("watchers")))
        await until(lambda: self.following._seq == newest or not self.following._lines)
        feeds = [(buffer, feed) for buffer in self.following._lines.values() for feed in buffer.feeds]
        await until(lambda: not self.following._woken and all(it.newest <= feed.position for it, feed in feeds))
        await pause(12)

    # outgoing

    def messages(self, address: str) -> list[Message]:
        return [Message.of(it) for it in self.link.published if it.address == address]

    async def answered(self, address: str, is_over: Callable[[Message], bool]) -> Message:
        """Wait for the last message of a response and return it."""
        await until(lambda: any(map(is_over, self.messages(address))))
        return next(filter(is_over, self.messages(address)))

    def remember(self, found: Sequence[str]) -> None:
        """Record observations that were not sent as messages."""
        self._remembered += found

    def note(self, name: str) -> None:
        """Record all messages since the last note under this name, sorted by address."""
        published = [*self.link.published, *(self.watchers.link.published if self.watchers is not None else ())]
        new = [Message.of(it) for it in published if id(it) not in self._seen]
        self._seen.update(map(id, published))
        new.sort(key=lambda it: it.address)
        self.learned[name] = [*map(self._written, new), *self._remembered]
        self._remembered = []

    def _written(self, message: Message) -> str:
        payload = message.payload.decode() if message.payload[:1] in b"{[" else message.payload.hex(" ")
        text = f"{message.address} {json.dumps(dict(sorted(message.headers.items())))} {payload}"
        for number, id in enumerate(self._subscriptions()):
            text = text.replace(id, f"subscription-{number}")
        return text

    def _subscriptions(self) -> list[str]:
        found = (
            _SUBSCRIPTION.search(it.envelope.payload.decode())
            for it in self.link.published
            if b"subscriptionId" in it.envelope.payload
        )
        return list(dict.fromkeys(match[1] for match in found if match is not None))


async def _note(_: Any) -> None:
    """Do nothing: searches on behalf of others are not recorded."""


def payload_of(step: Step) -> bytes:
    """Return a step as a message of the Ditto protocol."""
    entity, headers = step.entity, {"correlation-id": "w", **step.headers}
    kind = "things/live/messages" if step.action == MESSAGE else "things/twin/commands"
    action = step.path.rpartition("/")[2] if step.action == MESSAGE else step.action
    if step.action == MESSAGE:
        headers["response-required"] = False
    if step.action == "merge":
        headers["content-type"] = "application/merge-patch+json"
    if entity.type is EntityType.POLICY:
        kind = "policies/commands"
    message = {"topic": f"{entity.namespace}/{entity.name}/{kind}/{action}", "headers": headers, "path": step.path}
    return json.dumps(message if step.value is ... else {**message, "value": step.value}).encode()


def rsio_subscription(publisher: str, demand: int = 10_000) -> bytes:
    """Return a client's hello and its only subscription."""
    return bytes.fromhex("01 00 00") + encode(SubscribeFrame(publisher, 1, demand))


async def observe(scenario: Scenario, inquiry: Inquiry) -> Learned:
    """Run a scenario, watch, send the requests, and return the observations."""
    observer = Observer(scenario.subjects)
    try:
        for step in scenario.steps[: scenario.watched]:
            await observer.carry_out(step)
        observer.now = scenario.begins or observer.now
        await observer.watch(inquiry)
        observer.note("watching")
        for step in scenario.steps[scenario.watched :]:
            await observer.carry_out(step)
            await observer.calm()
        observer.now = scenario.asked
        # Sweep as a second later, because subjects expire without a change.
        observer.sweep_sessions()
        await observer.calm()
        observer.note("watched")
        for number, question in enumerate(inquiry.questions):
            await question.put(observer)
            await observer.calm()
            observer.note(f"{number} {question!r}")
        return observer.learned
    finally:
        await observer.end()
