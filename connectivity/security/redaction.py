"""The last word about secrets: no log line, no trace and no reason of a lost link shows one that is in use.

Whoever makes a text keeps secrets out of it (`mask_uri`, `Connection.masked`, models that hide their input). But texts come
from client libraries, brokers and exceptions too, and an exception says what it likes. So whatever leaves goes through
`redact`, which knows the secrets that are in use and every way in which one is usually written: as it is, percent-encoded,
in base64, as JSON and `repr` write it, line by line. The password of any address is hidden as well, known or not.

Secrets shorter than eight characters are hidden in addresses alone: elsewhere they would be found in ordinary words.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from connectivity.security.uri import MASK

SHORTEST = 8
REMEMBERED = 4
"""So many former sets of secrets of an owner are hidden too: who used them last may still be talking."""

OWNERS = 20_000

_HEAD = 4
"""Characters by which a text is looked up before it is compared."""

_ADDRESS = re.compile(
    # The user name ends at the first colon, and nothing is tried twice: the text may be a client's, to wear us out.
    r"(?P<before>://(?>(?:(?!%3a)[^\s/@:\"'<>\\,{}])*)(?::|%3a))(?!\*{5}@)[^\s/@\"'<>\\,{}]++@",
    re.IGNORECASE,
)


class SecretRedactor:
    """The secrets that are in use, by their owners. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: OrderedDict[str, deque[frozenset[str]]] = OrderedDict()
        self._uses: Counter[str] = Counter()
        self._by_head: dict[str, tuple[str, ...]] = {}

    def __repr__(self) -> str:
        return f"<Secrets of {len(self._owners)} owners>"

    def remember(self, owner: str, secrets: Iterable[str]) -> None:
        """Hide these secrets from now on; they are what `owner` uses."""
        forms = frozenset(form for secret in secrets for form in _forms(secret))
        with self._lock:
            known = self._owners.setdefault(owner, deque())
            self._owners.move_to_end(owner)
            if forms in known:
                return
            known.append(forms)
            self._add(forms)
            if len(known) > REMEMBERED:
                self._drop(known.popleft())
            if len(self._owners) > OWNERS:
                for former in self._owners.popitem(last=False)[1]:
                    self._drop(former)

    def hide(self, text: str) -> str:
        """The text, with `*****` wherever one of the secrets stands."""
        if "://" in text:
            text = _ADDRESS.sub(rf"\g<before>{MASK}@", text)
        heads = self._by_head
        if not heads:
            return text
        parts: list[str] = []
        done = at = 0
        while at <= len(text) - _HEAD:
            for form in heads.get(text[at : at + _HEAD], ()):
                if text.startswith(form, at):
                    parts += (text[done:at], MASK)
                    done = at = at + len(form)
                    break
            else:
                at += 1
        return "".join((*parts, text[done:])) if parts else text

    def _add(self, forms: Iterable[str]) -> None:
        for form in forms:
            self._uses[form] += 1
            if self._uses[form] == 1:
                head = form[:_HEAD]
                # The longest first: one may begin like another.
                self._by_head[head] = tuple(sorted((*self._by_head.get(head, ()), form), key=len, reverse=True))

    def _drop(self, forms: Iterable[str]) -> None:
        for form in forms:
            self._uses[form] -= 1
            if not self._uses[form]:
                del self._uses[form]
                head = form[:_HEAD]
                if left := tuple(other for other in self._by_head[head] if other != form):
                    self._by_head[head] = left
                else:
                    del self._by_head[head]


def _forms(secret: str) -> Iterator[str]:
    """A secret in every way in which it may be written."""
    ways = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    ways |= {
        json.dumps(way, ensure_ascii=is_ascii)[1:-1] for way in (secret, repr(secret)) for is_ascii in (True, False)
    }
    ways |= {repr(secret)[1:-1], *_base64(secret.encode("utf-8", "surrogatepass"))}
    ways |= {line.strip() for line in secret.splitlines() if not line.startswith("-----")}
    return (way for way in ways if len(way) >= SHORTEST)


def _base64(secret: bytes) -> Iterator[str]:
    """What the secret looks like within base64, wherever it begins; the digits that it shares with others are left out."""
    if len(secret) < SHORTEST:
        return
    for shift, first in ((0, 0), (1, 2), (2, 3)):
        last = (shift + len(secret)) * 8 // 6
        for alphabet in (b"+/", b"-_"):
            yield base64.b64encode(bytes(shift) + secret, alphabet).decode()[first:last]


_secrets = SecretRedactor()
remember = _secrets.remember
redact = _secrets.hide
