"""A connection with all wire protocols: a lamp with a history, or many lamps for searches.

setup = await AllProtocolsSetup.filled(monkeypatch, revisions=10)
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any, Self

import pytest

from mappings.streamr.auth_keys import fingerprint
from spark_store.errors import HistoryUnavailable, StoreUnavailable
from tests.support.in_process.service import OWNER, ConnectionHarness, HoldingLink, command, policy, turn, until

STRANGER = "acme:stranger"
KEY, OTHER_KEY = "K", "O"
"""The Streamr keys of a client that may read the lamp, and of one without permissions."""


class HeldPage:
    """A place where a call waits until `opened` is set."""

    def __init__(self) -> None:
        self.is_reached = False
        self.opened = asyncio.Event()


class AllProtocolsSetup(ConnectionHarness):
    """A connection with a lamp, whose owner and a stranger have a source for each wire protocol."""

    def __init__(self, patch: pytest.MonkeyPatch, *, is_searched: bool = False) -> None:
        streamr = {"streams": {}, "authKeys": {"pump": fingerprint(KEY), "nobody": fingerprint(OTHER_KEY)}}
        super().__init__(
            *(
                {
                    "addresses": [f"{protocol}/{subject}"],
                    "authorizationContext": [subject],
                    "payloadMapping": [protocol],
                    "replyTarget": {"address": "{{ header:reply-to }}"},
                }
                for protocol in ("Ditto", "Streamr", "ReactiveStreamsIO")
                for subject in (OWNER, STRANGER)
            ),
            {"addresses": ["owner"], "authorizationContext": [OWNER], "replyTarget": {"address": "owner"}},
            id=f"setup-{secrets.token_hex(4)}",
            mappingDefinitions={
                "Streamr": {"mappingEngine": "Streamr", "options": streamr},
                "ReactiveStreamsIO": {"mappingEngine": "ReactiveStreamsIO", "options": {}},
            },
        )
        self.patch = patch
        self.holding = self.link = HoldingLink()
        self.outbox.attach(self.holding)
        self._subscriptions = self._lamps = 0
        self._is_searched = is_searched

    @classmethod
    async def filled(cls, patch: pytest.MonkeyPatch, revisions: int = 10, *, is_searched: bool = False) -> Self:
        """Return a setup with a lamp of `revisions` revisions, or with as many lamps for searches."""
        setup = cls(patch, is_searched=is_searched)
        if is_searched:
            await setup.grow(revisions)
            return setup
        terms = policy(OWNER)
        terms["entries"]["PUMP"] = {
            "subjects": {"streamr:pump": {"type": "test"}},
            "resources": {"thing:/": {"grant": ["READ"], "revoke": []}},
        }
        await setup.change(command("create", value={"_policy": terms}))
        await setup.grow(revisions - 1)
        return setup

    async def change(self, *commands: bytes) -> None:
        """Send commands of the owner and wait until they succeed."""
        answers = self.holding.by_address["owner"]
        before = len(answers)
        self.deliver(*commands, source=-1)
        await until(lambda: len(answers) == before + len(commands))
        assert {json.loads(each.envelope.payload)["status"] // 100 for each in answers} == {2}

    async def grow(self, number: int) -> None:
        """Add `number` revisions, or lamps."""
        if self._is_searched:
            numbers = range(self._lamps + 1, self._lamps + number + 1)
            self._lamps += number
            lamps = [{"_policy": policy(OWNER), "attributes": {"n": each}} for each in numbers]
            await self.change(*(command("create", value=lamp, name=f"n-{lamp['attributes']['n']}") for lamp in lamps))
        elif number:
            await self.change(*(turn(each) for each in range(number)))

    def pass_time(self, seconds: int) -> None:
        """Advance the clock by one second at a time, and run the periodic work of the service each second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.streams.sweep()
            self.sweep_sessions()

    def fail_behind(self, revision: int) -> None:
        """Make reads after this revision fail from now on."""
        if self._is_searched:
            self._fail_to_find_behind(revision)
            return
        pages = self.store.page

        async def page(range: Any, position: int, limit: int, max_bytes: int) -> Any:
            if position >= revision:
                raise HistoryUnavailable("a file is gone")
            return await pages(range, position, min(limit, revision - position), max_bytes)

        self.patch.setattr(self.store, "page", page)

    def _fail_to_find_behind(self, number: int) -> None:
        pages = self.search.page

        def page(question: Any, rights: Any, after: Any, limit: int, budget: Any, max_bytes: int) -> Any:
            found = pages(question, rights, after, limit, budget, max_bytes)
            left = sum(hit.thing["attributes"]["n"] <= number for hit in found.hits)
            if not left:
                raise StoreUnavailable("a file is gone")
            return pages(question, rights, after, left, budget, max_bytes)._replace(is_last=False)

        self.patch.setattr(self.search, "page", page)

    def hold_next_page(self) -> HeldPage:
        """Make the next read wait until the returned page is opened; other reads do not wait."""
        held_page = HeldPage()
        place: Any = self.searching if self._is_searched else self.store
        name = "look" if self._is_searched else "page"
        pages = getattr(place, name)

        async def page(*wanted: Any) -> Any:
            self.patch.setattr(place, name, pages)
            held_page.is_reached = True
            await held_page.opened.wait()
            return await pages(*wanted)

        self.patch.setattr(place, name, page)
        return held_page

    def next_number(self) -> int:
        """Return the number for the name of the next subscription."""
        self._subscriptions += 1
        return self._subscriptions
