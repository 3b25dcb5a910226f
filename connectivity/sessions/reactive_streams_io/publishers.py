"""Resolves publisher strings to feeds and element sizes (reactive-streams-io, names).

Permissions are those of all streaming: history and events of a twin require READ on all of it; a stream requires READ on
`stream:/<id>` in its policy. Unreadable publishers are reported as not found. A revision that is no longer retained is an
error, and not skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import cbor2
import msgspec
import structlog

from connectivity.connections.target_topics import EXTRA_FIELDS
from connectivity.sessions.reactive_streams_io.access import not_readable
from connectivity.sessions.reactive_streams_io.feeds import (
    ConcatenatedFeed,
    DeferredFeed,
    EncodedFeed,
    EnrichedFeed,
    NumbersFeed,
    SyntheticFeed,
    Write,
)
from connectivity.sessions.stream_source import StreamSource, query_of
from connectivity.store.store import Store
from connectivity.subscriptions.feed import NOTHING, Feed, FeedFailed
from connectivity.subscriptions.history_feed import HistoryFeed
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.targets.enrichment import ExtraFields
from connectivity.targets.signal_context import TWIN_EVENTS, SignalContext, SuppressionReason
from connectivity.targets.topic_filter import TopicFilter
from connectivity.twins.access import may_stream, readable_history
from connectivity.twins.context import StateLookup
from connectivity.twins.incarnations import VisibleRevisions
from mappings.errors import DecodeError, Fault, PlaceholderError
from mappings.ids import EntityId
from mappings.json_values import decode_value, encode_value, parse_json
from mappings.model.field_selector import InvalidSelector, parse_fields, select
from mappings.model.json_pointer import MISSING, parse_pointer
from mappings.model.signals import (
    Event,
    HistoryQuery,
    LiveQuery,
    Query,
    SearchQuery,
    Subscribe,
    SubscriptionKind,
    TwinEvent,
)
from mappings.reactive_streams_io import elements, publisher_names
from mappings.reactive_streams_io.elements import EventWriter, packer
from mappings.reactive_streams_io.options import RsioOptions
from mappings.streams.entry import All, EntrySelection, FromTime, Last, OffsetRange, encode_entry, published_at
from mappings.streams.stream_id import partition_id
from mappings.timestamps import parse_instant
from spark_store import rql
from spark_store.errors import QueryError
from spark_store.history.event_view import matches, partial_thing

log = structlog.get_logger(__name__)


def cbor(element: bytes) -> bytes:
    """A JSON value in CBOR."""
    return cbor2.dumps(parse_json(element))


_headers = msgspec.json.Decoder(dict[str, object]).decode


def enriched_encoder(
    entity: EntityId,
    fields: str,
    filter: str | None,
    subjects: tuple[str, ...],
    world: StateLookup,
    now: Callable[[], datetime],
) -> Callable[[Event], bytes | None]:
    """Return the encoder of a thing's events that pass a filter, with extra fields.

    Raises ValueError for invalid or unknown fields; QueryError for an invalid filter.
    """
    try:
        names = ExtraFields(fields).names
    except PlaceholderError as error:
        raise ValueError(error.fault.message) from error
    if unknown := sorted(names.difference(EXTRA_FIELDS)):
        raise ValueError(
            f"found {unknown[0]!r} at the start of a path in extra-fields, expected one of {', '.join(EXTRA_FIELDS)}"
        )
    wanted = {"extraFields": fields} | ({} if filter is None else {"filter": filter})
    interest = TopicFilter([f"{TWIN_EVENTS}?{urlencode(wanted, quote_via=quote)}"], subjects)
    writer = EventWriter(entity)

    def write(event: Event) -> bytes | None:
        twin_event = TwinEvent(*event[:6], headers=_headers(event.headers))
        judged = interest.filter(SignalContext(twin_event, world, now))
        if isinstance(judged, SuppressionReason):
            if judged.is_failure:
                log.warning("event omitted", entity=str(entity), revision=event.revision, reason=judged.value)
            return None
        return writer(event._replace(value=judged.value), judged.extra)

    return write


_RQL = "rql.expression.invalid"

STREAM_VERSION = 28
"""The version of Streamr messages whose array is the element of a stream."""


class ResolvedPublisher(NamedTuple):
    """A resolved publisher. `open` returns its feed of encoded elements, or the fault.

    `is_revocable`: changes of policies may end it; a past that has ended before keeps its permissions.
    """

    kind: SubscriptionKind
    entity: EntityId | None
    element_size: int
    open: Callable[[], Feed | Fault]
    is_revocable: bool = True


class PublisherResolver:
    """Opens publishers for one mapper."""

    def __init__(
        self,
        options: RsioOptions,
        store: Store,
        streams: SubscriptionManager,
        world: StateLookup,
        source: StreamSource,
        now: Callable[[], datetime],
    ) -> None:
        self._options = options
        self._store = store
        self._streams = streams
        self._world = world
        self._source = source
        self._now = now

    def open(self, publisher: str, subjects: tuple[str, ...]) -> ResolvedPublisher | Fault:
        """Return the publisher of a publisher string, or the fault."""
        try:
            name = publisher_names.parse(publisher, with_test_publishers=self._options.has_test_publishers)
            opened = self._open_named(name, subjects)
            return opened if name.encoding == "json" or isinstance(opened, Fault) else _in_cbor(name, opened)
        except DecodeError as error:
            return error.fault
        except (InvalidSelector, ValueError) as error:
            return _wrong(str(error))
        except QueryError as error:
            return _unprocessable(error.fault)

    def _open_named(self, name: publisher_names.Name, subjects: tuple[str, ...]) -> ResolvedPublisher | Fault:
        match name:
            case publisher_names.SyntheticName():
                return ResolvedPublisher(
                    SubscriptionKind.HISTORY, None, elements.element_size(name), lambda: _open_synthetic(name)
                )
            case publisher_names.History():
                return self._history(name, subjects)
            case publisher_names.Events():
                return self._events(name, subjects)
            case publisher_names.SearchName():
                return self._search(name, subjects)
            case publisher_names.StreamName():
                return self._stream(name, subjects)
            case publisher_names.IngestName():
                return Fault(
                    404,
                    "rsio:publisher.notfound",
                    "Clients cannot subscribe to ingested streams; only the service can.",
                )

    # things and policies

    def _history(self, name: publisher_names.History, subjects: tuple[str, ...]) -> ResolvedPublisher | Fault:
        for end, found in (("to", name.to_revision), ("to-ts", name.before)):
            if name.follow and found is not None:
                return _wrong(f"found both follow and {end}, expected only one")
        if name.extra_fields is not None and not name.follow:
            return _wrong("found extra-fields without follow, expected follow=true")
        entity = name.entity
        write = self._written(entity, name.projection, name.fields, None)
        live = _beginning(self._live_encoder(name, subjects), name.from_revision, name.after) if name.follow else write
        is_present = may_stream(entity, subjects, self._world) is None

        def open() -> Feed | Fault:
            known = self._newest_known(entity) if name.follow else 0
            if name.follow and (fault := may_stream(entity, subjects, self._world)) is not None:
                return fault
            query = HistoryQuery(
                entity, name.from_revision or 0, name.to_revision, name.after, name.before, name.filter
            )
            feed = self._ask(SubscriptionKind.HISTORY, query, subjects)
            if isinstance(feed, Fault):
                return feed
            if name.from_revision is not None and feed is not NOTHING:
                visible = readable_history(entity, subjects, self._world, name.to_revision)
                assert isinstance(visible, VisibleRevisions), "the feed was opened"
                feed = self._check_retention(entity, name.from_revision, visible, feed)
                if isinstance(feed, Fault):
                    return feed
            if not name.follow:
                return _written(feed, write, is_sparse=name.projection is not None)
            return followed_feed(
                feed, write, known, lambda after: self._live(entity, after, live, subjects, name.extra_fields)
            )

        return ResolvedPublisher(SubscriptionKind.HISTORY, entity, _size(name.projection), open, is_present)

    def _events(self, name: publisher_names.Events, subjects: tuple[str, ...]) -> ResolvedPublisher | Fault:
        write = self._live_encoder(name, subjects)

        def open() -> Feed | Fault:
            return self._live(name.entity, None, write, subjects, name.extra_fields)

        return ResolvedPublisher(SubscriptionKind.LIVE, name.entity, _size(name.projection), open)

    def _live(
        self,
        entity: EntityId,
        after: int | None,
        write: Write,
        subjects: tuple[str, ...],
        extra_fields: str | None = None,
    ) -> Feed | Fault:
        feed = self._ask(SubscriptionKind.LIVE, LiveQuery(entity, after), subjects)
        if isinstance(feed, Fault):
            return feed
        return EncodedFeed(feed, write) if extra_fields is None else EnrichedFeed(feed, write)

    def _matching(self, text: str) -> Callable[[Event], bool]:
        """Whether an event matches a filter. Raises QueryError."""
        predicate = rql.resolve_times(rql.parse(text), self._now())
        weight = rql.weight(predicate)

        def is_match(event: Event) -> bool:
            try:
                return matches(predicate, weight, event)
            except QueryError as error:
                raise FeedFailed(error.fault) from error

        return is_match

    def _live_encoder(self, name: publisher_names.History | publisher_names.Events, subjects: tuple[str, ...]) -> Write:
        """Return the encoder of the live events that a name selects.

        Raises InvalidSelector, DecodeError, QueryError, ValueError.
        """
        if name.extra_fields is None:
            is_kept = self._matching(name.filter) if name.filter is not None else None
            return self._written(name.entity, name.projection, name.fields, is_kept)
        if name.projection is not None:
            raise ValueError("found both extra-fields and project, expected only one")
        write = enriched_encoder(name.entity, name.extra_fields, name.filter, subjects, self._world, self._now)
        return write if name.fields is None else _selecting_encoder(write, name.fields)

    def _written(
        self,
        entity: EntityId,
        projection: publisher_names.Projection | None,
        fields: str | None,
        is_kept: Callable[[Event], bool] | None,
    ) -> Write:
        """Return the encoder of historical events. Raises InvalidSelector, DecodeError."""
        write: Write = EventWriter(entity) if projection is None else _projection_encoder(projection)
        if fields is not None:
            if projection is not None:
                raise ValueError("found both fields and project, expected only one")
            write = _selecting_encoder(write, fields)
        if is_kept is None:
            return write
        return lambda event: write(event) if is_kept(event) else None

    # searches

    def _search(self, name: publisher_names.SearchName, subjects: tuple[str, ...]) -> ResolvedPublisher | Fault:
        """Raises InvalidSelector."""
        if name.fields is not None:
            parse_fields(name.fields)
        namespaces = tuple(name.namespaces.split(",")) if name.namespaces else ()
        is_by_thing = name.unit == "thing"
        query = SearchQuery(name.filter, name.options, namespaces, name.fields, size=1 if is_by_thing else None)

        def open() -> Feed | Fault:
            feed = self._ask(SubscriptionKind.SEARCH, query, subjects)
            return EncodedFeed(feed, _thing) if is_by_thing and not isinstance(feed, Fault) else feed

        return ResolvedPublisher(SubscriptionKind.SEARCH, None, 0, open)

    # streams

    def _stream(self, name: publisher_names.StreamName, subjects: tuple[str, ...]) -> ResolvedPublisher | Fault:
        known = self._options.streams.get(name.id)
        if known is None or name.partition >= known.partitions:
            return Fault(
                404, "rsio:stream.notfound", f"There is no stream '{name.id}' with partition {name.partition}."
            )
        entity, selection = partition_id(name.id, name.partition), _selection(name)

        def read_fault() -> Fault | None:
            return not_readable(entity, subjects, self._options.streams, self._world)

        has_begun = name.since is None

        def write(event: Event) -> bytes | None:
            nonlocal has_begun
            has_begun = has_begun or published_at(event) >= (name.since or 0)
            return encode_entry(self._source.entry(event), STREAM_VERSION) if has_begun else None

        def live(after: int | None, first: int | None = None) -> Feed | Fault:
            return read_fault() or self._live(entity, after, _beginning(write, first), subjects)

        def open() -> Feed | Fault:
            if (fault := read_fault()) is not None:
                return fault
            if selection is None:
                return live(None) if name.follow else NOTHING
            known, newest = self._newest_known(entity), self._store.newest_revision(entity)
            feed = self._earlier_messages(entity, name.from_offset, selection, newest, subjects)
            if isinstance(feed, Fault):
                return feed
            if not name.follow:
                return _written(feed, write)
            return followed_feed(feed, write, known, lambda after: live(after, name.from_offset))

        return ResolvedPublisher(
            SubscriptionKind.LIVE if selection is None else SubscriptionKind.HISTORY, entity, 0, open
        )

    def _earlier_messages(
        self, entity: EntityId, first: int | None, selection: EntrySelection, newest: int, subjects: tuple[str, ...]
    ) -> Feed | Fault:
        """Return the feed of the selected messages of a stream, or the fault if `first` is no longer retained."""

        def ask(query: HistoryQuery) -> Feed | Fault:
            return self._ask(SubscriptionKind.HISTORY, query, subjects)

        async def find() -> Feed | Fault:
            # The first messages name the right predecessors only if it is known where the stream begins.
            oldest = await self._store.retained_history.look(entity)
            if (gone := _retention_fault(entity, first, oldest, newest)) is not None:
                return gone
            if isinstance(selection, FromTime):
                return ask(await self._source.query_from_time(entity, selection.instant, oldest=oldest, newest=newest))
            return ask(query_of(selection, entity, newest))

        if isinstance(selection, FromTime):
            return DeferredFeed(find)
        query = query_of(selection, entity, newest)
        feed = ask(query)
        return feed if feed is NOTHING or self._source.is_at_hand(query) else DeferredFeed(find)

    # the store

    def _ask(self, kind: SubscriptionKind, query: Query, subjects: tuple[str, ...]) -> Feed | Fault:
        try:
            feed = self._streams.open_feed(Subscribe(kind, query, {}), subjects)
        except QueryError as error:
            feed = error.fault
        if isinstance(feed, HistoryFeed) and feed.is_empty:
            return NOTHING
        return _unprocessable(feed) if isinstance(feed, Fault) else feed

    def _newest_known(self, entity: EntityId) -> int:
        """Return the newest revision that a history which is opened now has in any case.

        Later ones may be decided only: if they cannot be stored, others get their revisions. Or they have just become
        durable, and are not known yet.
        """
        return min(self._store.newest_durable(entity), self._store.newest_revision(entity))

    def _check_retention(self, entity: EntityId, wanted: int, visible: VisibleRevisions, feed: Feed) -> Feed | Fault:
        """Return the feed, or the fault for a revision that is no longer retained, or not visible.

        Where the history begins may have to be looked up in the lake first.
        """
        begin, newest = visible
        if wanted >= begin and _retention_fault(entity, wanted, self._store.oldest_revision(entity), newest) is None:
            return feed

        async def find() -> Feed | Fault:
            oldest = max(begin, await self._store.retained_history.look(entity))
            return _retention_fault(entity, wanted, oldest, newest) or feed

        return DeferredFeed(find)


def _retention_fault(entity: EntityId, wanted: int | None, oldest: int, newest: int) -> Fault | None:
    """Return the fault for a revision from before the oldest one."""
    if wanted is None or wanted < 1 or wanted > newest or wanted >= oldest:
        return None
    return Fault(
        410,
        "rsio:history.gone",
        f"The request starts at {wanted}, but the retained history of '{entity}' starts at {oldest}.",
    )


def _in_cbor(name: publisher_names.Name, opened: ResolvedPublisher) -> ResolvedPublisher | Fault:
    """The same elements in CBOR, where they are JSON."""
    if opened.element_size or (isinstance(name, publisher_names.SyntheticName) and name.kind == "big"):
        return _wrong("found enc=cbor, expected no enc, because this publisher sends bytes instead of JSON")

    def open() -> Feed | Fault:
        feed = opened.open()
        return feed if isinstance(feed, Fault) else _written(feed, cbor)

    return opened._replace(open=open)


def _open_synthetic(name: publisher_names.SyntheticName) -> Feed | Fault:
    feed = NumbersFeed(name) if elements.element_size(name) else SyntheticFeed(name)
    return (elements.ending(name) or NOTHING) if feed.is_empty else feed


def _written(feed: Feed, write: Write, *, is_sparse: bool = False) -> Feed:
    """Return a feed with encoded elements; an empty feed stays recognizable as empty."""
    return feed if feed is NOTHING else EncodedFeed(feed, write, is_sparse=is_sparse)


def followed_feed(past: Feed, write: Write, known: int, live: Callable[[int], Feed | Fault]) -> Feed:
    """Return the feed of a history that continues live behind its last event.

    `known`: the revision up to which the history has all events that it selects.
    """
    last = 0

    def written(event: Event) -> bytes | None:
        nonlocal last
        last = event.revision
        return write(event)

    return ConcatenatedFeed(EncodedFeed(past, written), lambda: live(max(last, known)))


def _size(projection: publisher_names.Projection | None) -> int:
    return 0 if projection is None else projection.element_size


def _beginning(write: Write, first: int | None, after: int | None = None) -> Write:
    """The encoder of live events that leaves out those before a range which begins in the future.

    `after` is in nanoseconds since 1970.
    """
    if after is not None:
        return lambda event: write(event) if (parse_instant(event.timestamp) or 0) > after else None
    if first is not None and first > 0:
        return lambda event: write(event) if event.revision >= first else None
    return write


def _projection_encoder(projection: publisher_names.Projection) -> Write:
    """The number at a pointer after an event, packed. Raises DecodeError."""
    segments = parse_pointer(projection.pointer)
    pack = packer(projection)

    def write(event: Event) -> bytes | None:
        found: Any = partial_thing(event)
        for segment in segments:
            found = found.get(segment, MISSING) if isinstance(found, dict) else MISSING
        return pack(found)

    return write


def _selecting_encoder(write: Write, fields: str) -> Write:
    """Elements with some of their members only. Raises InvalidSelector."""
    selection = parse_fields(fields)

    def selected(event: Event) -> bytes | None:
        raw = write(event)
        return raw if raw is None else encode_value(select(decode_value(raw), selection))

    return selected


def _thing(page: bytes) -> bytes:
    """Return the only thing of a page."""
    return page[1:-1]


def _selection(name: publisher_names.StreamName) -> EntrySelection | None:
    """Return the selection of earlier messages; None for none."""
    if name.all:
        return All()
    if name.last is not None:
        return Last(name.last) if name.last else None
    if name.from_offset is not None:
        return OffsetRange(name.from_offset, name.to_offset)
    return FromTime(name.since) if name.since is not None else None


def _unprocessable(fault: Fault) -> Fault:
    """The same with the status that this protocol has for a filter that cannot be read."""
    return replace(fault, status=422) if fault.error == _RQL else fault


def _wrong(words: str) -> Fault:
    return Fault(400, "rsio:publisher.invalid", f"{words[:1].upper()}{words[1:]}.")
