"""Credentials for web pages: signed tokens, each of which lets its holder send one upload.

A token says which upload it is for, with its size and type, from pages of which origin, until when,
and which key issued it. It is not stored: the signature (HMAC-SHA256) makes it valid, for as long
as the key that issued it is valid.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from towpath.apps.uploads.errors import CredentialsOff, UploadJoined, UploadUnsized
from towpath.apps.uploads.model import Upload
from towpath.calls.signature import derive_secret
from towpath.clock import Duration, duration_ms, instant, wall_ms
from towpath.errors import InvalidOption
from towpath.ledger.keys.key import KeyInfo

PREFIX = "tpu_"
_PURPOSE = "upload credentials"
_LONGEST = 4096
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]{0,31}://[^\s/?#@\x00-\x1f]{1,255}")


class UploadGrant(msgspec.Struct, frozen=True, array_like=True):
    """The content of a credential."""

    upload_id: str
    size: int
    mime_type: str
    origin: str | None
    """None = it is for programs: requests of pages are refused."""
    key: str
    """The id of the key that issued it."""
    expires_at: int
    """ms"""


class CredentialTerms(NamedTuple):
    """The checked parameters of a request for a credential."""

    origin: str | None
    lasts: Duration


class Credential(NamedTuple):
    """A credential that was just issued."""

    token: str
    grant: UploadGrant

    @property
    def expires_at(self) -> datetime:
        return instant(self.grant.expires_at)


class Credentials:
    """Issues and reads credentials, with keys derived from the server's signing *secrets*.

    The first secret signs, all of them are accepted: so secrets can be rotated.
    """

    def __init__(self, secrets: Sequence[str], *, longest: Duration) -> None:
        self._keys = [derive_secret(secret, _PURPOSE).encode() for secret in secrets]
        self._longest = longest

    def terms(self, *, origin: str | None, ttl: Duration | None) -> CredentialTerms:
        """Check the parameters of a credential. Raises CredentialsOff, InvalidOption."""
        if not self._keys:
            raise CredentialsOff
        if origin is not None and _ORIGIN.fullmatch(origin) is None:
            rule = "must be the origin of a page, such as https://app.example.com"
            raise InvalidOption("origin", origin[:80], rule=rule)
        lasts = self._longest if ttl is None else ttl
        if not duration_ms("ttl", lasts) or lasts > self._longest:
            rule = f"must be above 0 and at most {self._longest.total_seconds():g} seconds"
            raise InvalidOption("ttl", f"{lasts.total_seconds():g}", rule=rule)
        return CredentialTerms(origin, lasts)

    def issue(self, upload: Upload, key: KeyInfo, terms: CredentialTerms) -> Credential:
        """A credential for *upload*, issued by *key*. Raises UploadUnsized, UploadJoined."""
        if upload.sources:
            raise UploadJoined(upload.upload_id)
        if upload.size is None:
            raise UploadUnsized(upload.upload_id)
        grant = UploadGrant(
            upload.upload_id,
            upload.size,
            upload.mime_type,
            terms.origin,
            key.id,
            wall_ms() + duration_ms("ttl", terms.lasts),
        )
        return Credential(self.sign(grant), grant)

    def sign(self, grant: UploadGrant) -> str:
        """The signed token for *grant*."""
        encoded = _encode(msgspec.json.encode(grant))
        return f"{PREFIX}{encoded}.{_signature(self._keys[0], encoded)}"

    def read(self, token: str) -> UploadGrant | None:
        """The content of *token*; None if its signature is wrong or it has expired."""
        encoded, _, signature = token.removeprefix(PREFIX).partition(".")
        if len(token) > _LONGEST or not token.isascii():
            return None
        # Compare with every key, so that the time taken does not reveal which one matches.
        fits = [hmac.compare_digest(_signature(key, encoded), signature) for key in self._keys]
        if not any(fits):
            return None
        try:
            grant = msgspec.json.decode(_decode(encoded), type=UploadGrant)
        except (ValueError, msgspec.MsgspecError):
            return None
        return grant if wall_ms() < grant.expires_at else None


def _signature(key: bytes, encoded: str) -> str:
    return _encode(hmac.new(key, encoded.encode(), hashlib.sha256).digest())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
