"""Who sent a webhook: signatures and tokens, compared in constant time, before any parsing.

Several secrets may be known at once, so that one can be replaced without a gap.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime

from towpath.calls.signature import SIGNATURE, verify
from towpath.errors import InvalidOption
from towpath.forges.errors import SignatureInvalid

HUB_SIGNATURE = "X-Hub-Signature-256"
TOKEN = "X-Gitlab-Token"  # noqa: S105 -- a header's name
SIGNING = "whsec_"
"""How GitLab's signing tokens begin: they sign, they are never sent."""


def checked_secrets(option: str, secrets: Sequence[str]) -> tuple[str, ...]:
    """*secrets*, if each of them is one. Raises InvalidOption and repeats none.

    An empty one would let everybody in: it fits a header that is not there.
    """
    if isinstance(secrets, str) or not secrets or not all(map(str.strip, secrets)):
        raise InvalidOption(option, "…", rule="must be a list of secrets, none of them empty")
    return tuple(secrets)


def check_hub_signature(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> None:
    """Return if GitHub's signature of *body* fits one of *secrets*, else SignatureInvalid.

    *body* is what came over the wire: the same JSON in other bytes has another signature.
    """
    keys = checked_secrets("secrets", secrets)
    given = _given(HUB_SIGNATURE, headers)
    # In one call: several times as quick as an object for each.
    found = [hmac.digest(key.encode(), body, "sha256").hex() for key in keys]
    _check(HUB_SIGNATURE, given, [f"sha256={digest}".encode() for digest in found])


def check_gitlab(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, *, now: datetime | None
) -> str | None:
    """The delivery's id if it was signed, None if it only came with a good token.

    Secrets that begin with `whsec_` are signing tokens, the others secret tokens. A signature
    counts alone where there is a token to check it with: no secret token makes up for a wrong
    one. Raises SignatureInvalid, or what `calls.verify` raises; all are SignatureRefused.
    """
    known = checked_secrets("secrets", secrets)
    signing = [secret for secret in known if secret.startswith(SIGNING)]
    if signing and headers.get(SIGNATURE):
        return verify(signing, headers, body, now=now).id
    tokens = [secret.encode() for secret in known if not secret.startswith(SIGNING)]
    if signing and not tokens:
        raise SignatureInvalid(SIGNATURE, "is missing")
    _check(TOKEN, _given(TOKEN, headers), tokens)
    return None


def _given(name: str, headers: Mapping[str, str]) -> bytes:
    value = headers.get(name.lower(), "")
    if not value:
        raise SignatureInvalid(name, "is missing")
    # The bytes of the wire, which servers show as Latin-1.
    return value.encode("latin-1", "backslashreplace")


def _check(name: str, given: bytes, expected: Sequence[bytes]) -> None:
    # All are compared: how long it takes tells nothing about which of them fits.
    if not sum(hmac.compare_digest(given, digest) for digest in expected):
        raise SignatureInvalid(name, "matches none of the secrets")
