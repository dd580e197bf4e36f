"""Signatures as Standard Webhooks has them: HMAC-SHA256 over id, time and the raw body.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets as random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from towpath.calls.errors import SecretInvalid, SignatureMissing, SignatureStale, SignatureWrong
from towpath.clock import Duration, duration_ms, instant, instant_ms, minutes, wall_ms
from towpath.errors import InvalidOption

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = minutes(5)

_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
_NEW = 32
_ID = re.compile(r"[!-\-/-~]{1,1024}")
_ID_RULE = "1 to 1024 printable ASCII characters, no space or dot; see message_id()"
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)
_MOST_SIGNATURES = 32


@dataclass(frozen=True, slots=True)
class Verified:
    """A message whose signature is valid. Its id is the same for every attempt."""

    id: str
    sent: datetime


def new_secret() -> str:
    """A secret of 256 random bits, with the prefix by which leaks of it are found."""
    return _PREFIX + base64.b64encode(random.token_bytes(_NEW)).decode()


OUTBOX = "outbox"
"""What calls are for that carry the outbox; each application names the purposes of its own."""
_LABELS = {OUTBOX: "events"}
"""What a secret is derived from, where that is not the purpose's name: receivers keep the secret
that they were given while the outbox was called so.
"""
TAKEN = frozenset((OUTBOX, *_LABELS.values()))
"""Purposes that no application may have."""


def derived(secret: str, purpose: str) -> str:
    """The secret for calls of one kind, made of *secret*: whoever has it knows no other one.

    Raises SecretInvalid.
    """
    label = f"towpath calls {_LABELS.get(purpose, purpose)}"
    key = hmac.new(_key(secret), label.encode(), hashlib.sha256).digest()
    return _PREFIX + base64.b64encode(key).decode()


def check_secret(secret: str) -> None:
    """Raises SecretInvalid for what can't sign anything."""
    _key(secret)


def message_id(text: str) -> str:
    """*text* as an id that can be signed: one id per text, the text itself where that is possible.

    A dot can't be in it: the signature covers `id.time.body`, and whoever chooses the id could move
    the border between the parts.
    """
    return quote(text, safe="!$&'()*+,:;=@").replace(".", "%2E")


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """One value for the signature header, `v1,…`; *timestamp* is in seconds since 1970.

    Raises InvalidOption for an id that can't be signed, SecretInvalid for a secret that is none.
    """
    if _ID.fullmatch(id) is None:
        raise InvalidOption("id", id[:80], rule=_ID_RULE)
    return "v1," + base64.b64encode(_mac(_key(secret), id, str(timestamp), body)).decode()


def headers_for(
    secrets: Sequence[str],
    id: str,
    body: bytes,
    *,
    now: datetime | None = None,
) -> dict[str, str]:
    """The three headers for this attempt at a message, signed with every one of *secrets*.

    During a rotation these are two, and receivers that know either accept it. The same message
    keeps its id for all attempts; the time is that of the attempt.
    """
    if not secrets or isinstance(secrets, str):
        raise InvalidOption("secrets", "…", rule="must be a list of at least one secret")
    timestamp = _now_ms(now) // 1000
    signatures = [sign(secret, id, timestamp, body) for secret in secrets]
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def verify(
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: Duration = TOLERANCE,
    now: datetime | None = None,
) -> Verified:
    """The message's id and time, if one of its signatures fits one of *secrets*.

    *body* is what came over the wire, before any parsing. Takes the same time for a signature that
    is wrong at its beginning or at its end. Raises SignatureMissing, SignatureWrong or
    SignatureStale; a message seen before is for the caller to find, by its id.
    """
    if not secrets or isinstance(secrets, str):
        raise InvalidOption("secrets", "…", rule="must be a list of at least one secret")
    found = {name.lower(): value for name, value in headers.items()}
    id_, timestamp = found.get(ID, ""), found.get(TIMESTAMP, "")
    if not id_:
        raise SignatureMissing(ID)
    if _SECONDS.fullmatch(timestamp) is None:
        raise SignatureMissing(TIMESTAMP)
    given = _signatures(found.get(SIGNATURE, ""))
    expected = [_mac(_key(secret), id_, timestamp, body) for secret in secrets]
    # Every pair is compared: how long it takes tells nothing about which of them fits.
    if not sum(hmac.compare_digest(mine, theirs) for mine in expected for theirs in given):
        raise SignatureWrong
    off = _now_ms(now) // 1000 - int(timestamp)
    if abs(off) * 1000 > duration_ms("tolerance", tolerance):
        raise SignatureStale(off=off, tolerance=int(tolerance.total_seconds()))
    return Verified(id_, instant(int(timestamp) * 1000))


def _signatures(header: str) -> list[bytes]:
    """The signatures of version 1 in a header; others belong to schemes that are not ours."""
    words = [word.partition(",") for word in header.split(" ")[:_MOST_SIGNATURES]]
    given = [signature.encode() for version, _, signature in words if version == "v1"]
    if not given:
        raise SignatureMissing(SIGNATURE)
    return [_decoded(text) for text in given]


def _decoded(signature: bytes) -> bytes:
    try:
        return base64.b64decode(signature, validate=True)
    except ValueError:
        return b""  # fits nothing, as any other wrong signature


def _mac(key: bytes, id_: str, timestamp: str, body: bytes) -> bytes:
    signed = b".".join((id_.encode(), timestamp.encode(), body))
    return hmac.new(key, signed, hashlib.sha256).digest()


def _key(secret: str) -> bytes:
    text = secret.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise SecretInvalid("is not base64") from None
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise SecretInvalid(f"must have {_SHORTEST} to {_LONGEST} bytes, it has {len(key)}")
    return key


def _now_ms(now: datetime | None) -> int:
    return wall_ms() if now is None else instant_ms("now", now)
