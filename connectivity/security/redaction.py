"""Redacts secrets from log lines, traces and reasons of lost links.

Code that builds texts keeps secrets out (`mask_uri`, models that hide their input), but client
libraries, brokers and exceptions build texts too. `redact` knows the secrets in use in their usual forms: literal,
percent-encoded, base64, as JSON and `repr` write them, line by line. It also hides the password of any address. Secrets
shorter than eight characters are hidden in addresses only: elsewhere they would match ordinary words.
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
FORMER = 1000
"""How many sets of secrets that are no longer in use are redacted too: late messages may contain them."""

_HEAD = 4
"""Characters by which a text is looked up before it is compared."""

_ADDRESS = re.compile(
    # The user name ends at the first colon, and nothing is tried twice: the text may be a client's, to wear us out.
    r"(?P<before>://(?>(?:(?!%3a)[^\s/@:\"'<>\\,{}])*)(?::|%3a))(?!\*{5}@)[^\s/@\"'<>\\,{}]++@",
    re.IGNORECASE,
)


class Redaction:
    """Keeps secrets redacted as long as it exists.

    All are equal, since connections are compared by their fields.
    """

    __slots__ = ("_forms", "_released")

    def __init__(self, forms: frozenset[str], released: deque[frozenset[str]]) -> None:
        self._forms = forms
        self._released = released

    def __del__(self) -> None:
        # It may run in the middle of anything, also where the lock is held.
        self._released.append(self._forms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Redaction)

    def __hash__(self) -> int:
        return hash(Redaction)


class SecretRedactor:
    """The secrets in use, of the service and of its connections. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._released: deque[frozenset[str]] = deque()
        """Secrets whose use has ended since the last call of `remember`."""
        self._former: OrderedDict[frozenset[str], None] = OrderedDict()
        self._uses: Counter[str] = Counter()
        self._by_head: dict[str, tuple[str, ...]] = {}

    def remember_own(self, secrets: Iterable[str]) -> None:
        """Redact these secrets of the service itself as long as it runs."""
        with self._lock:
            self._add(_forms_of(secrets))

    def remember(self, secrets: Iterable[str]) -> Redaction:
        """Redact these secrets of a connection as long as the result exists, and some time longer."""
        forms = _forms_of(secrets)
        with self._lock:
            self._add(forms)
            while self._released:
                self._retire(self._released.popleft())
        return Redaction(forms, self._released)

    def hide(self, text: str) -> str:
        """Return the text with `*****` in the place of every secret."""
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

    def _retire(self, forms: frozenset[str]) -> None:
        """Count secrets that are no longer in use as the newest former ones, each set once."""
        if forms in self._former:
            self._drop(forms)
        self._former[forms] = None
        self._former.move_to_end(forms)
        if len(self._former) > FORMER:
            self._drop(self._former.popitem(last=False)[0])

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


def _forms_of(secrets: Iterable[str]) -> frozenset[str]:
    return frozenset(form for secret in secrets for form in _forms(secret))


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
    """Yield the base64 forms of the secret at each alignment, without shared digits."""
    if len(secret) < SHORTEST:
        return
    for shift, first in ((0, 0), (1, 2), (2, 3)):
        last = (shift + len(secret)) * 8 // 6
        for alphabet in (b"+/", b"-_"):
            yield base64.b64encode(bytes(shift) + secret, alphabet).decode()[first:last]


_secrets = SecretRedactor()
remember, remember_own = _secrets.remember, _secrets.remember_own
redact = _secrets.hide
