"""Signatures by Standard Webhooks: HMAC-SHA256 over id, time and the raw body.

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
    """Make a secret of 256 random bits. Its prefix lets scanners find leaked secrets."""
    return _PREFIX + base64.b64encode(random.token_bytes(_NEW)).decode()


OUTBOX = "outbox"
"""The purpose of calls that send the outbox. Applications have purposes of their own."""
_LABELS = {OUTBOX: "events"}
"""Labels for deriving a secret, if not the name of the purpose. The outbox was once called events,
and its receivers keep the secret that they were given then.
"""
TAKEN = frozenset((OUTBOX, *_LABELS.values()))
"""Purposes that applications must not use."""


def derive_secret(secret: str, purpose: str) -> str:
    """Derive the secret for calls of one *purpose* from *secret*.

    A derived secret reveals neither *secret* nor the secrets of other purposes. Raises
    SecretInvalid.
    """
    label = f"towpath calls {_LABELS.get(purpose, purpose)}"
    key = hmac.new(_key(secret), label.encode(), hashlib.sha256).digest()
    return _PREFIX + base64.b64encode(key).decode()


def check_secret(secret: str) -> None:
    """Raise SecretInvalid if *secret* has the wrong form."""
    _key(secret)


def message_id(text: str) -> str:
    """Encode *text* as an id that can be signed. Different texts get different ids.

    Dots are encoded too: the signature covers `id.time.body`, and with a dot in the id the borders
    between these parts would be ambiguous.
    """
    return quote(text, safe="!$&'()*+,:;=@").replace(".", "%2E")


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return one value of the signature header, `v1,…`; *timestamp* is in seconds since 1970.

    Raises InvalidOption for an id that can't be signed, and SecretInvalid.
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
    """Return the three headers for one attempt to send a message, signed with each of *secrets*.

    During a rotation there are two secrets, and a receiver that knows either accepts the message.
    All attempts at a message have the same id; the time is that of the attempt.
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
    """Return the message's id and time if one of its signatures matches one of *secrets*.

    *body* is the raw body, before any parsing. Compares in constant time. Raises SignatureMissing,
    SignatureWrong or SignatureStale. Detecting repeated messages, by their id, is up to the caller.
    """
    if not secrets or isinstance(secrets, str):
        raise InvalidOption("secrets", "…", rule="must be a list of at least one secret")
    found = {name.lower(): value for name, value in headers.items()}
    id_, timestamp = found.get(ID, ""), found.get(TIMESTAMP, "")
    if not id_:
        raise SignatureMissing(ID)
    if _SECONDS.fullmatch(timestamp) is None:
        raise SignatureMissing(TIMESTAMP)
    given = _parse_signatures(found.get(SIGNATURE, ""))
    expected = [_mac(_key(secret), id_, timestamp, body) for secret in secrets]
    # Compare every pair, so that the time taken does not reveal which one matches.
    if not sum(hmac.compare_digest(mine, theirs) for mine in expected for theirs in given):
        raise SignatureWrong
    off = _now_ms(now) // 1000 - int(timestamp)
    if abs(off) * 1000 > duration_ms("tolerance", tolerance):
        raise SignatureStale(off=off, tolerance=int(tolerance.total_seconds()))
    return Verified(id_, instant(int(timestamp) * 1000))


def _parse_signatures(header: str) -> list[bytes]:
    """Return the signatures of version 1 in a header; other versions are ignored."""
    words = [word.partition(",") for word in header.split(" ")[:_MOST_SIGNATURES]]
    given = [signature.encode() for version, _, signature in words if version == "v1"]
    if not given:
        raise SignatureMissing(SIGNATURE)
    return [_decode_signature(text) for text in given]


def _decode_signature(signature: bytes) -> bytes:
    try:
        return base64.b64decode(signature, validate=True)
    except ValueError:
        return b""  # matches nothing, as any other wrong signature


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
