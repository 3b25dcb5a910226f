"""Random requests over all protocols, about existing and missing parts of a scenario.

Values are drawn from the scenario itself, so that conditions, filters and entity tags match, even if the subject lacks
read permission.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from connectivity.errors import OperationRefused
from connectivity.subscriptions.search_requests import HttpSearch
from connectivity.twins.context import hash_tag
from mappings.ids import EntityId, EntityType
from mappings.model.field_selector import parse_fields
from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.frames import CORE, Goodbye, OnComplete, OnError
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.non_interference.observer import (
    ANSWERS,
    DITTO,
    KEY,
    RSIO,
    STREAMR,
    Inquiry,
    Message,
    Observer,
    Question,
    rsio_subscription,
)
from tests.support.non_interference.scenarios import (
    LABELS,
    POLICIES,
    SUBJECTS,
    THINGS,
    Scenario,
    a_place,
    a_thing,
    an_object,
    value_at,
)
from tests.support.non_interference.secrets import Secrets
from tests.support.twin_harness import policy, thing

NEVER = (thing("acme:never"), policy("acme:never"))
"""IDs that no scenario uses."""
_MERGE = "application/merge-patch+json"
_RESEND_ENDS = (5, 6, 7)


# kinds of requests


@dataclass(frozen=True)
class Ask(Question):
    """A command of the Ditto protocol with one response."""

    topic: str
    path: str = "/"
    value: Any = ...
    fields: str | None = None
    headers: tuple[tuple[str, Any], ...] = ()

    def payload(self, correlation_id: str, **more: Any) -> bytes:
        message: dict[str, Any] = {
            "topic": self.topic,
            "path": self.path,
            "headers": {**dict(self.headers), "correlation-id": correlation_id, **more},
        }
        if self.value is not ...:
            message["value"] = self.value
        if self.fields is not None:
            message["fields"] = self.fields
        return json.dumps(message).encode()

    async def put(self, observer: Observer) -> None:
        id = f"q-{observer.next_number()}"
        observer.say(self.payload(id), DITTO, ANSWERS)
        await observer.answered(ANSWERS, lambda it: _correlation(it) == id)
        await observer.settle()


@dataclass(frozen=True)
class Tell(Ask):
    """A live signal, which has no response unless it is refused."""

    async def put(self, observer: Observer) -> None:
        id = f"q-{observer.next_number()}"
        observer.say(self.payload(id, **{"response-required": False}), DITTO, ANSWERS)
        await observer.settle()


@dataclass(frozen=True)
class Subscription(Ask):
    """A subscription of the Ditto protocol to a history or a search, until its end."""

    async def put(self, observer: Observer) -> None:
        id = f"q-{observer.next_number()}"
        observer.say(self.payload(id), DITTO, ANSWERS)
        first = await observer.answered(ANSWERS, lambda it: _correlation(it) == id)
        answer = json.loads(first.payload)
        if answer["topic"].endswith("/created"):
            key = answer["value"]["subscriptionId"]
            topic = self.topic.rpartition("/")[0]
            demand = Ask(f"{topic}/request", value={"subscriptionId": key, "demand": 1000})
            observer.say(demand.payload(f"{id}-demand"), DITTO, ANSWERS)
            await observer.answered(ANSWERS, lambda it: _ends(it, key, f"{id}-demand"))
        await observer.settle()


def _correlation(message: Message) -> Any:
    return json.loads(message.payload)["headers"].get("correlation-id")


def _ends(message: Message, key: str, demand: str) -> bool:
    """Return whether a message ends a subscription, or refuses a request for it."""
    answer = json.loads(message.payload)
    match answer["topic"].rpartition("/")[2]:
        case "complete" | "failed":
            return bool(answer["value"]["subscriptionId"] == key)
        case "errors":
            return bool(_correlation(message) == demand)
    return False


@dataclass(frozen=True)
class StreamrResend(Question):
    """A resend of the Streamr protocol, until its end."""

    request: Mapping[str, Any]

    async def put(self, observer: Observer) -> None:
        address = f"streamr-{observer.next_number()}"
        observer.say(json.dumps(self.request).encode(), STREAMR, address)
        await observer.answered(address, lambda it: json.loads(it.payload)[1] in _RESEND_ENDS)
        await observer.settle()


@dataclass(frozen=True)
class StreamrPublish(Question):
    """A command published to the stream of a twin; it has no response unless it fails."""

    stream: str
    command: Ask

    async def put(self, observer: Observer) -> None:
        number = observer.next_number()
        content = self.command.payload(f"q-{number}").decode()
        request = {"type": "publish", "stream": self.stream, "authKey": KEY, "msg": content}
        observer.say(json.dumps(request).encode(), STREAMR, f"streamr-{number}")
        await observer.settle()


@dataclass(frozen=True)
class RsioSubscription(Question):
    """A subscription of reactive-streams-io, until its end."""

    publisher: str

    async def put(self, observer: Observer) -> None:
        address = f"rsio-{observer.next_number()}"
        observer.say(rsio_subscription(self.publisher), RSIO, address)
        await observer.answered(address, lambda _: _is_over(observer.messages(address)))
        await observer.settle()


def _is_over(messages: Sequence[Message]) -> bool:
    reader = Decoder(EndpointLimits(), CORE | {0x02}, 0x02, dict.fromkeys(range(100), 0))
    return any(isinstance(it, OnComplete | OnError | Goodbye) for each in messages for it in reader.feed(each.payload))


@dataclass(frozen=True)
class OverHttp(Question):
    """A search over HTTP: all its pages with the lengths of their cursors, or the number of things."""

    filter: str | None
    options: str | None
    namespaces: frozenset[str] | None
    fields: str | None
    is_count: bool

    async def put(self, observer: Observer) -> None:
        selection = None if self.fields is None else parse_fields(self.fields)
        search = HttpSearch(observer.subjects, self.filter, self.options, self.namespaces, selection)
        found: list[str] = []
        try:
            if self.is_count:
                found.append(str(await observer.requests.count(search)))
            while not self.is_count:
                page = await observer.requests.things(search)
                found.append(f"{page.items.decode()} cursor of {len(page.cursor or '')}")
                if page.cursor is None:
                    break
                cursor = f"cursor({page.cursor})"
                search = replace(search, options=f"{self.options},{cursor}" if self.options else cursor)
        except OperationRefused as refused:
            found.append(repr(refused.fault))
        observer.remember(found)


# random requests


class RandomRequests:
    """Draws random requests about a scenario."""

    def __init__(self, scenario: Scenario, secrets: Secrets, dice: random.Random) -> None:
        self._scenario = scenario
        self._secrets = secrets
        self._dice = dice
        self._absent = secrets.absent
        final = secrets.moments[-1].states
        self._states = {entity: snapshot for entity, snapshot in final.items() if snapshot.state is not None}
        self._revisions = {entity: snapshot.revision for entity, snapshot in final.items()}
        self._values = [value for snapshot in self._states.values() for value in _parts(snapshot.state)]

    def inquiry(self, number: int) -> Inquiry:
        """Return topics and subscriptions to watch with, and `number` requests."""
        watches = self._scenario.watched < len(self._scenario.steps)
        things = self._dice.sample(THINGS, 3)
        makers: Sequence[tuple[int, Callable[[], Question]]] = (
            (6, self._retrieve),
            (2, self._retrieve_several),
            (1, self._check_permissions),
            (3, self._retrieve_past),
            (3, self._change),
            (1, self._create),
            (1, self._message),
            (3, self._history),
            (4, self._search),
            (2, self._past_search),
            (1, self._aggregation),
            (2, self._resend),
            (1, self._publish),
            (3, self._rsio),
            (2, self._over_http),
        )
        chosen = self._dice.choices([make for _, make in makers], [weight for weight, _ in makers], k=number)
        return Inquiry(
            topics=self._topics() if watches else (),
            streamr=[_stream(it) for it in (*things, *POLICIES)] if watches else (),
            rsio=[self._watched_publisher(it) for it in things] if watches else (),
            questions=[make() for make in chosen],
        )

    # watching

    def _topics(self) -> list[list[str]]:
        extra = quote(self._fields())
        return [
            [
                "_/_/things/twin/events",
                "_/_/things/live/messages",
                "_/_/things/live/events",
                "_/_/policies/announcements",
            ],
            [f"_/_/things/twin/events?filter={quote(self._filter())}"],
            [f"_/_/things/twin/events?extraFields={extra}"],
            [f"_/_/things/twin/events?filter={quote(self._filter())}&extraFields={extra}"],
        ]

    def _watched_publisher(self, entity: EntityId) -> str:
        name = f"things/{entity}/{self._dice.choice(('events?', 'history?follow=true&'))}"
        return name + self._dice.choice(
            ("", f"extra-fields={quote(self._fields())}", f"filter={quote(self._filter())}", "fields=value,revision")
        )

    # requests

    def _retrieve(self) -> Ask:
        entity = self._entity()
        headers = dict(self._conditions(entity, is_read=True))
        if entity.type is EntityType.POLICY:
            if self._dice.random() < 0.3:
                headers["policy-view"] = "resolved"
            fields = self._dice.choice((None, None, "policyId,entries", "_revision,_modified,entries/X"))
            return Ask(_topic(entity, "retrieve"), self._policy_place(), fields=fields, headers=_pairs(headers))
        if self._dice.random() < 0.2:
            headers["get-metadata"] = self._dice.choice(("*/unit", "unit", "x/unit"))
        place = self._dice.choice(("/", "/", a_place(self._dice), "/policyId", "/definition", "/attributes/w"))
        fields = self._fields() if place == "/" and self._dice.random() < 0.5 else None
        return Ask(_topic(entity, "retrieve"), place, fields=fields, headers=_pairs(headers))

    def _retrieve_several(self) -> Ask:
        ids = [it.id for it in self._dice.sample((*THINGS, NEVER[0]), self._dice.randint(1, 5))]
        fields = self._fields() if self._dice.random() < 0.6 else None
        return Ask("_/_/things/twin/commands/retrieve", value={"thingIds": ids}, fields=fields)

    def _check_permissions(self) -> Ask:
        checks = {}
        for number in range(self._dice.randint(1, 4)):
            entity = self._entity()
            kind, place = "policy", self._policy_place()
            if entity.type is EntityType.THING:
                kind, place = self._dice.choice(("thing", "message")), self._dice.choice(("/", a_place(self._dice)))
            permissions = self._dice.sample(("READ", "WRITE"), self._dice.randint(1, 2))
            checks[str(number)] = {"resource": f"{kind}:{place}", "entityId": entity.id, "hasPermissions": permissions}
        return Ask("_/_/policies/commands/checkPermissions", value=checks)

    def _retrieve_past(self) -> Ask:
        asked = self._retrieve()
        headers = dict(asked.headers)
        if self._dice.random() < 0.5:
            headers["at-historical-revision"] = self._dice.randint(1, 6)
        else:
            moment = self._dice.choice(self._secrets.moments)
            headers["at-historical-timestamp"] = moment.at.isoformat().replace("+00:00", "Z")
        return replace(asked, headers=_pairs(headers))

    def _change(self) -> Ask:
        """Return a command that would change something if permitted, but never a permission to read."""
        entity = self._entity()
        headers = dict(self._conditions(entity, is_read=False))
        if entity.type is EntityType.POLICY:
            place = self._dice.choice(
                ("/entries/X", "/entries/never", "/entries/Y/subjects/edge:c", "/imports/acme:never")
            )
            if not self._may_only_fail(entity, ("policy", *place.split("/")[1:])):
                return self._retrieve()
            return Ask(_topic(entity, "delete"), place, headers=_pairs(headers))
        place = a_place(self._dice)
        action = self._dice.choice(("modify", "merge", "delete"))
        if action == "delete":
            return Ask(_topic(entity, action), place, headers=_pairs(headers))
        if action == "merge":
            headers["content-type"] = _MERGE
            if self._dice.random() < 0.3 and self._may_be_written_whole(entity):
                patch = {"attributes": an_object(self._dice)}
                return Ask(_topic(entity, action), "/", patch, headers=_pairs(headers))
        elif self._dice.random() < 0.1 and entity in self._states and self._may_be_written_whole(entity):
            value = {**a_thing(self._dice, "acme:p"), "policyId": self._states[entity].policy}
            return Ask(_topic(entity, action), "/", value, headers=_pairs(headers))
        value = value_at(self._dice, place)
        return Ask(_topic(entity, action), place, value, headers=_pairs(headers))

    def _create(self) -> Ask:
        """Return the creation of a thing, under a policy that may be readable or not."""
        policy_id, other = self._dice.choice((*POLICIES, NEVER[1])), self._dice.choice((*THINGS, NEVER[0]))
        value = self._dice.choice(
            (
                {"policyId": policy_id.id},
                {"_copyPolicyFrom": policy_id.id},
                {"_copyPolicyFrom": f"{{{{ ref:things/{other}/policyId }}}}"},
            )
        )
        name = f"acme/new-{self._dice.randint(1, 10**6)}"
        return Ask(f"{name}/things/twin/commands/create", "/", {**value, "attributes": an_object(self._dice)})

    def _message(self) -> Tell:
        entity = self._entity(THINGS)
        kind = self._dice.choice(("messages/ask", "commands/retrieve", "commands/modify", "events/modified"))
        path = "/inbox/messages/ask" if kind == "messages/ask" else a_place(self._dice)
        value = ... if kind == "commands/retrieve" else 1
        return Tell(f"{entity.namespace}/{entity.name}/things/live/{kind}", path, value)

    def _history(self) -> Subscription:
        entity = self._entity()
        value: dict[str, Any] = {}
        match self._dice.randint(0, 3):
            case 0:
                value["fromHistoricalRevision"] = self._dice.randint(-2, 5)
            case 1:
                moment = self._dice.choice(self._secrets.moments)
                value["fromHistoricalTimestamp"] = moment.at.isoformat().replace("+00:00", "Z")
            case 2:
                value["fromHistoricalRevision"], value["toHistoricalRevision"] = 1, self._dice.randint(1, 6)
        if self._dice.random() < 0.3 and entity.type is EntityType.THING:
            value["filter"] = self._filter()
        return Subscription(_topic(entity, "subscribeForPersistedEvents", "streaming"), value=value)

    def _search(self) -> Subscription:
        options = []
        if self._dice.random() < 0.7:
            options.append(f"size({self._dice.choice((1, 2, 25))})")
        if self._dice.random() < 0.6:
            places = self._dice.sample(self._sortable(), self._dice.randint(1, 2))
            options.append(f"sort({','.join(self._dice.choice('+-') + name for name in places)})")
        value: dict[str, Any] = {"options": ",".join(options)} if options else {}
        if self._dice.random() < 0.8:
            value["filter"] = self._filter()
        if self._dice.random() < 0.2:
            value["namespaces"] = ["acme.plant"]
        fields = self._fields() if self._dice.random() < 0.5 else None
        return Subscription("_/_/things/twin/search/subscribe", value=value, fields=fields)

    def _past_search(self) -> Subscription:
        moment = self._dice.choice(self._secrets.moments)
        at = moment.at.isoformat().replace("+00:00", "Z")
        return replace(self._search(), headers=(("at-historical-timestamp", at),))

    def _aggregation(self) -> Subscription:
        places = self._sortable()
        wanted: dict[str, Any] = {}
        if self._dice.random() < 0.7:
            wanted["groupBy"] = {"g": self._dice.choice(places)}
        if self._dice.random() < 0.7:
            wanted["measures"] = {"m": {self._dice.choice(("min", "max", "sum", "avg")): self._dice.choice(places)}}
        value: dict[str, Any] = {"aggregation": wanted}
        if self._dice.random() < 0.4:
            value["filter"] = self._filter()
        return Subscription("_/_/things/twin/search/subscribe", value=value)

    def _resend(self) -> StreamrResend:
        request: dict[str, Any] = {"type": "resend", "stream": _stream(self._entity()), "authKey": KEY, "sub": "s"}
        match self._dice.randint(0, 3):
            case 0:
                request["resend_all"] = True
            case 1:
                request["resend_last"] = self._dice.randint(1, 4)
            case 2:
                request["resend_from"] = self._dice.randint(1, 4)
            case _:
                request["resend_from_time"] = int(self._dice.choice(self._secrets.moments).at.timestamp() * 1000)
        return StreamrResend(request)

    def _publish(self) -> Question:
        command = self._change()
        if "/retrieve" in command.topic:
            return command
        namespace, name, *_ = command.topic.split("/")
        kind = "policies" if "/policies/" in command.topic else "things"
        return StreamrPublish(f"{kind}/{namespace}:{name}", command)

    def _rsio(self) -> RsioSubscription:
        if self._dice.random() < 0.4:
            parameters = [f"filter={quote(self._filter())}", f"unit={self._dice.choice(('page', 'thing'))}"]
            if self._dice.random() < 0.5:
                parameters.append(f"fields={quote(self._fields())}")
            parameters.append(f"options={quote(f'sort(-{self._dice.choice(self._sortable())})')}")
            return RsioSubscription(f"things/search?{'&'.join(parameters)}")
        name = f"{_stream(self._entity())}/history"
        return RsioSubscription(name + self._dice.choice(("", "?from=1", "?from=-2", "?from=2&to=4", "?enc=cbor")))

    def _over_http(self) -> OverHttp:
        asked = self._search()
        namespaces = asked.value.get("namespaces")
        return OverHttp(
            asked.value.get("filter"),
            asked.value.get("options"),
            None if namespaces is None else frozenset(namespaces),
            asked.fields,
            self._dice.random() < 0.3,
        )

    # the subjects of requests

    def _entity(self, among: Sequence[EntityId] = (*THINGS, *THINGS, *POLICIES)) -> EntityId:
        return self._dice.choice((*among, NEVER[0]))

    def _may_be_written_whole(self, entity: EntityId) -> bool:
        """Return whether the root of a thing may be written: this would create an absent thing."""
        return entity not in self._absent

    def _may_only_fail(self, entity: EntityId, path: tuple[str, ...]) -> bool:
        """Return whether a command on a policy is refused; others would change permissions to read."""
        return not self._secrets.last_sight(entity).writes_part(path)

    def _conditions(self, entity: EntityId, *, is_read: bool) -> Mapping[str, Any]:
        headers: dict[str, Any] = {}
        if self._dice.random() < 0.15:
            headers["condition"] = self._filter()
        if self._dice.random() < 0.2:
            tag = self._dice.choice(("*", f'"rev:{self._revisions.get(entity, 1)}"', hash_tag(self._guess())))
            headers[self._dice.choice(("if-match", "if-none-match"))] = tag
        if not is_read and self._dice.random() < 0.2:
            headers["if-equal"] = self._dice.choice(("skip", "skip-minimizing-merge"))
        return headers

    def _guess(self) -> Any:
        return self._dice.choice(self._values) if self._values and self._dice.random() < 0.8 else 1

    def _policy_place(self) -> str:
        label = self._dice.choice((*LABELS, "ROOT"))
        return self._dice.choice(
            (
                *(
                    "/",
                    "/",
                    "/entries",
                    f"/entries/{label}",
                    f"/entries/{label}/subjects",
                    f"/entries/{label}/resources",
                ),
                *(f"/entries/{label}/subjects/{self._dice.choice(SUBJECTS)}", f"/entries/{label}/importable"),
                *("/imports", "/imports/acme:q", f"/entries/{label}/resources/thing:/", f"/entries/{label}/references"),
            )
        )

    def _fields(self) -> str:
        names = ("thingId", "policyId", "attributes/x", "attributes", "features/f", "features/*/properties/x")
        special = ("_revision", "_created", "_modified", "_policy", "_metadata", "_namespace", "_policy/entries/X")
        return ",".join(self._dice.sample((*names, *special), self._dice.randint(1, 4)))

    def _sortable(self) -> Sequence[str]:
        return (
            *("attributes/x", "attributes/y", "attributes/z/x", "features/f/properties/x", "policyId", "thingId"),
            *("definition", "_revision", "_modified"),
        )

    def _filter(self, depth: int = 1) -> str:
        dice = self._dice
        if depth and dice.random() < 0.3:
            parts = [self._filter(0) for _ in range(dice.randint(1, 2))]
            return dice.choice((f"and({','.join(parts)})", f"or({','.join(parts)})", f"not({parts[0]})"))
        place = dice.choice(
            (
                *(*self._sortable(), "features/*/properties/x", "attributes/x/y"),
                *("_metadata/attributes/x/unit", "_metadata/attributes/x/unit/of"),
            )
        )
        literal = self._literal()
        return dice.choice(
            (
                f"exists({place})",
                f"eq({place},{literal})",
                f"ne({place},{literal})",
                f"gt({place},{literal})",
                f"le({place},{literal})",
                f"in({place},{literal},{self._literal()})",
                f'like({place},"*e*")',
                f"empty({place})",
                f'eq(thingId,"{dice.choice(THINGS)}")',
            )
        )

    def _literal(self) -> str:
        guess = self._guess()
        if isinstance(guess, dict | list):
            guess = 1
        return json.dumps(guess, ensure_ascii=False)


def _stream(entity: EntityId) -> str:
    return f"{'things' if entity.type is EntityType.THING else 'policies'}/{entity}"


def _topic(entity: EntityId, action: str, kind: str = "commands") -> str:
    group = "policies" if entity.type is EntityType.POLICY else "things/twin"
    return f"{entity.namespace}/{entity.name}/{group}/{kind}/{action}"


def _pairs(headers: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(headers.items())


def _parts(value: Any) -> list[Any]:
    """Return all parts of a value, including itself."""
    below = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [value, *(part for member in below for part in _parts(member))]
