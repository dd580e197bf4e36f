"""Signatures and tokens of webhooks, compared in constant time and before any parsing.

Several secrets can be valid at once, so that one can be replaced without rejecting webhooks.
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
"""The prefix of GitLab's signing tokens, which sign webhooks and are never sent themselves."""


def checked_secrets(option: str, secrets: Sequence[str]) -> tuple[str, ...]:
    """Return *secrets* if none of them is empty. Raises InvalidOption, which shows no secret.

    An empty secret would accept every webhook, because it equals a missing header.
    """
    if isinstance(secrets, str) or not secrets or not all(map(str.strip, secrets)):
        raise InvalidOption(option, "…", rule="must be a list of secrets, none of them empty")
    return tuple(secrets)


def check_hub_signature(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> None:
    """Check that GitHub's signature of *body* matches one of *secrets*. Raises SignatureInvalid.

    *body* must be the raw body: the same JSON written differently has another signature.
    """
    keys = checked_secrets("secrets", secrets)
    given = _read_header(HUB_SIGNATURE, headers)
    # hmac.digest is several times as fast as an hmac object.
    found = [hmac.digest(key.encode(), body, "sha256").hex() for key in keys]
    _check(HUB_SIGNATURE, given, [f"sha256={digest}".encode() for digest in found])


def check_gitlab(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, *, now: datetime | None
) -> str | None:
    """Check a signature or a secret token. Returns the delivery's id if it was signed, else None.

    Secrets that begin with `whsec_` are signing tokens, the others are secret tokens. If there is
    a signing token and the webhook has a signature, only the signature counts: a correct secret
    token does not make up for a wrong signature. Raises SignatureInvalid, or what
    `calls.signature.verify` raises; all are SignatureRefused.
    """
    known = checked_secrets("secrets", secrets)
    signing = [secret for secret in known if secret.startswith(SIGNING)]
    if signing and headers.get(SIGNATURE):
        return verify(signing, headers, body, now=now).id
    tokens = [secret.encode() for secret in known if not secret.startswith(SIGNING)]
    if signing and not tokens:
        raise SignatureInvalid(SIGNATURE, "is missing")
    _check(TOKEN, _read_header(TOKEN, headers), tokens)
    return None


def _read_header(name: str, headers: Mapping[str, str]) -> bytes:
    value = headers.get(name.lower(), "")
    if not value:
        raise SignatureInvalid(name, "is missing")
    # Servers decode header bytes as Latin-1, so this restores the original bytes.
    return value.encode("latin-1", "backslashreplace")


def _check(name: str, given: bytes, expected: Sequence[bytes]) -> None:
    # Compare all, so that the time taken does not reveal which one matches.
    if not sum(hmac.compare_digest(given, digest) for digest in expected):
        raise SignatureInvalid(name, "matches none of the secrets")
