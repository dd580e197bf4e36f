"""An API key: its name, scopes, queues and secret; and the cache of keys."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from math import log2
from typing import NamedTuple

import msgspec

from towpath.clock import Duration, instant_ms, seconds
from towpath.errors import InvalidName, InvalidOption
from towpath.recent import RecentCache

SHORTEST_SECRET, LONGEST_SECRET = 16, 512
_ID_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
_ID_LENGTH = 10
_SECRET_BYTES = 32
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,100}")
_PATTERN = re.compile(r"[a-z0-9._*?-]{1,64}")
_MOST_PATTERNS, _MOST_STARS = 100, 8
_LONGEST_QUEUE = 64


class Scope(StrEnum):
    """What a key may do; admin may do everything."""

    SUBMIT = "submit"
    """Submit jobs and use the applications."""
    WORK = "work"
    """Claim jobs and settle them."""
    READ = "read"
    """Read jobs, counts and events."""
    MANAGE = "manage"
    """Move, replace and cancel what other keys submitted."""
    RAW = "raw"
    """Use the queues of applications directly, past the applications' own paths."""
    ADMIN = "admin"


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    name: str
    scopes: frozenset[Scope]
    queues: tuple[str, ...]
    """Patterns of the queue names that it covers."""
    owner: str
    """Who owns what the key makes: the key's own id, or a name that several keys share."""
    created_at: datetime
    expires_at: datetime | None = None
    """When the key expires; None = never."""
    revoked_at: datetime | None = None
    """When the key was revoked; None = it was not."""
    last_used_at: datetime | None = None
    """When the key was last used, to about a minute."""

    def may(self, scope: Scope) -> bool:
        """Whether the key has *scope*; admin has all."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def owns(self, owner: str) -> bool:
        """Whether the key may use what belongs to *owner*; admin may use everything.

        What was created without a key has no owner (an empty name): only admin may use it.
        """
        return Scope.ADMIN in self.scopes or (owner != "" and owner == self.owner)

    def covers(self, queue: str) -> bool:
        """Whether the key is for *queue*. The scope admin does not lift this limit.

        A name that is too long for a queue is covered only by a key for all queues.
        """
        if len(queue) > _LONGEST_QUEUE:
            return "*" in self.queues
        return _matcher(self.queues).fullmatch(queue) is not None

    def ended(self, now: datetime) -> bool:
        """Whether the key is revoked, or has expired by *now*."""
        return self.revoked_at is not None or (
            self.expires_at is not None and self.expires_at <= now
        )


class KeySecret:
    """The secret of a new key. Printed or logged, it shows only stars."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        """Return the secret."""
        return self._value

    def __repr__(self) -> str:
        return "KeySecret(**********)"


class NewKey(NamedTuple):
    """A key that was just created. Its secret is not stored anywhere, so show it now."""

    info: KeyInfo
    secret: KeySecret


@lru_cache(maxsize=1024)
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compile all patterns to one regular expression."""
    return re.compile("|".join(map(_pattern_regex, patterns)))


def _pattern_regex(pattern: str) -> str:
    """Translate *pattern* to a regular expression that never backtracks.

    The part after a `*` is matched at its first occurrence, in an atomic group: a later occurrence
    would only leave less text for the rest. Only the part after the last `*` is bound to the end.
    """
    first, *others = re.sub(r"\*+", "*", pattern).split("*")
    if not others:
        return _literal_regex(first)
    *middle, last = others
    found = "".join(f"(?>.*?{_literal_regex(part)})" for part in middle)
    return f"{_literal_regex(first)}{found}.*{_literal_regex(last)}"


def _literal_regex(part: str) -> str:
    return re.escape(part).replace(r"\?", ".")


# ── secrets ──────────────────────────────────────────────────────────────────────────────


def new_id() -> str:
    """Make an id for a key: 10 characters that can't be confused when read aloud."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))


def new_secret(id: str) -> str:
    """Make a secret: `tp_`, the key's id (to identify a leaked secret), and 256 random bits."""
    return f"tp_{id}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def digest(secret: str) -> bytes:
    """Return the digest of a secret, which is stored. Secrets have too many random bits to need a
    slow hash or a salt.
    """
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


# ── checks ───────────────────────────────────────────────────────────────────────────────


def checked_secret(secret: str) -> str:
    """Return a *secret* chosen by the user if it is strong enough. Raises InvalidOption, which does
    not show it.
    """
    fits = SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET
    if not (fits and secret.isascii() and secret.isprintable() and " " not in secret):
        rule = f"must be {SHORTEST_SECRET} to {LONGEST_SECRET} characters of ASCII without blanks"
        raise InvalidOption("api key", "…", rule=rule)
    if _bits(secret) < _LEAST_BITS:
        rule = (
            f"can be guessed: it has fewer than {_LEAST_BITS} random bits; make one with "
            "`openssl rand -hex 32`, or leave it out and use `towpath keys create`"
        )
        raise InvalidOption("api key", "…", rule=rule)
    return secret


_ALPHABETS = (
    string.digits,
    string.digits + "abcdef",
    string.digits + "ABCDEF",
    string.ascii_lowercase,
    string.ascii_letters + string.digits + "-_",
)
"""Alphabets that can be recognized from a random text: of random texts of 22 letters, digits and
marks, one in 100,000 has no capital letter, but only one in 100 million has only small letters."""
_ALL = 94
_LEAST_BITS, _LEAST_NEW = 128, 0.6


def _bits(secret: str) -> float:
    """Estimate the maximum number of random bits in *secret*.

    Each character counts as one of the smallest alphabet that contains them all. If too many
    characters continue a pattern (`aaaa`, `1234`, `abcabc`), the result is 0; a few do by chance.
    """
    found = set(secret)
    size = next((len(alphabet) for alphabet in _ALPHABETS if found <= set(alphabet)), _ALL)
    steps = [ord(b) - ord(a) for a, b in pairwise(secret)]
    goes_on = sum(a == b for a, b in pairwise(steps))
    repeats = sum(secret[at : at + 3] in secret[: at + 2] for at in range(len(secret) - 2))
    if len(secret) - goes_on - repeats < _LEAST_NEW * len(secret):
        return 0
    return len(secret) * log2(size)


def checked_name(name: str) -> str:
    """Return *name* if it is valid. Raises InvalidName."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidName("key", name, rule="1 to 100 characters, no control characters")
    return name


def checked_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    """Return *scopes* if there is at least one, and all are known. Raises InvalidOption."""
    given = [scopes] if isinstance(scopes, str) else list(scopes)
    known = set(Scope)
    if not given or any(scope not in known for scope in given):
        shown = ", ".join(str(scope) for scope in given)
        raise InvalidOption("scopes", shown, rule=f"one or more of {', '.join(Scope)}")
    return frozenset(Scope(scope) for scope in given)


def checked_owner(owner: str | None) -> str | None:
    """Return *owner* if it is valid; None = the key's own id. Raises InvalidName."""
    return None if owner is None else checked_name(owner)


def checked_queues(queues: Iterable[str]) -> tuple[str, ...]:
    """Return *queues* in order, without repetitions, if they are valid patterns. Raises
    InvalidOption.
    """
    given = [queues] if isinstance(queues, str) else list(queues)
    if not 1 <= len(given) <= _MOST_PATTERNS:
        raise InvalidOption("queues", len(given), rule=f"1 to {_MOST_PATTERNS} patterns")
    for pattern in given:
        fits = isinstance(pattern, str) and _PATTERN.fullmatch(pattern)  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        if not fits or pattern.count("*") > _MOST_STARS:
            rule = (
                "1 to 64 of a-z, 0-9, '.', '_', '-', and '*' or '?' as wildcards, "
                f"at most {_MOST_STARS} of them '*'"
            )
            raise InvalidOption("queues", pattern, rule=rule)
    return tuple(dict.fromkeys(given))


def checked_expiry(expires_at: datetime | None, *, now_ms: int) -> int | None:
    """Return *expires_at* in ms. Raises InvalidOption for a time in the past."""
    if expires_at is None:
        return None
    ms = instant_ms("expires_at", expires_at)
    if ms <= now_ms:
        raise InvalidOption("expires_at", expires_at.isoformat(), rule="must be in the future")
    return ms


# ── the cache of keys ────────────────────────────────────────────────────────────────────

# Entries are used for at most `FRESH`, so that a revocation takes effect everywhere within that
# time. Wrong keys have a cache of their own, so that somebody who tries a million of them displaces
# only wrong keys.

FRESH: Duration = seconds(5)
"""How long an entry is used, counted from before the database was asked."""
_RENEW = seconds(3)
"""After this time the key is read again in the background, while requests still use the entry."""
MOST_REAL, MOST_WRONG = 10_000, 1_000


class KeyEntry:
    """The key with a digest; `info` is None if there is no such key."""

    __slots__ = ("asked_at", "digest", "ends_ms", "info", "renew_at")

    def __init__(self, digest: bytes, info: KeyInfo | None, ends_ms: float, asked: float) -> None:
        self.digest, self.info = digest, info
        self.ends_ms = ends_ms
        """When the key ends, by the wall clock."""
        self.asked_at = asked
        self.renew_at = asked + _RENEW.total_seconds()


class KnownKeys:
    """Entries by digest. Times are of a monotonic clock."""

    def __init__(
        self,
        ticks: Callable[[], float],
        *,
        most_real: int = MOST_REAL,
        most_wrong: int = MOST_WRONG,
    ) -> None:
        lasts = FRESH.total_seconds()
        self._real = RecentCache[bytes, KeyEntry](most_real, lasts, ticks=ticks)
        self._wrong = RecentCache[bytes, KeyEntry](most_wrong, lasts, ticks=ticks)

    def __len__(self) -> int:
        return len(self._real) + len(self._wrong)

    def find(self, digest: bytes) -> KeyEntry | None:
        """Return the entry if it is fresh."""
        return self._real.get(digest) or self._wrong.get(digest)

    def has_real(self, digest: bytes) -> bool:
        """Whether the cache has a real key with this digest, fresh or not."""
        return digest in self._real

    def put(self, entry: KeyEntry) -> None:
        self.forget(entry.digest)
        kind = self._wrong if entry.info is None else self._real
        kind.put(entry.digest, entry, since=entry.asked_at)

    def forget(self, digest: bytes) -> None:
        """Remove the entry, so that the next check reads the database."""
        self._real.pop(digest)
        self._wrong.pop(digest)
