"""Helpers that check and read webhooks: signatures, JSON with errors that name the field, headers,
times.

Signatures and tokens are compared in constant time, and before anything is parsed. Several secrets
can be valid at once, so that one can be replaced without rejecting webhooks.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from towpath.calls.signature import SIGNATURE, verify
from towpath.clock import instant_ms
from towpath.errors import InvalidOption
from towpath.forges.errors import FieldInvalid, SignatureInvalid, WebhookInvalid
from towpath.forges.texts import NO_COMMIT

T = TypeVar("T")

_AT = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<field>.*)`", re.DOTALL)
_SHOWN_MOST = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,63}")
_DELIVERY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TIME = re.compile(
    r"(?P<day>(?:19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2})[T ]"
    r"(?P<clock>[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)"
    r" ?(?P<zone>Z|UTC|[+-][0-9]{2}:?[0-9]{2})"
)
_BRANCHES = "refs/heads/"
HUB_SIGNATURE = "X-Hub-Signature-256"
TOKEN = "X-Gitlab-Token"  # noqa: S105 -- a header's name
SIGNING = "whsec_"
"""The prefix of GitLab's signing tokens, which sign webhooks and are never sent themselves."""


# ── signatures ───────────────────────────────────────────────────────────────────────────


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


# ── content ──────────────────────────────────────────────────────────────────────────────


def decoded(
    decoder: msgspec.json.Decoder[T], data: bytes, *, refusal: type[FieldInvalid], whole: str
) -> T:
    """Decode *data*. Raises *refusal* with the path of the field; *whole* names the data itself.

    The decoder bounds the depth: known fields have fixed types, unknown fields are skipped.
    """
    try:
        return decoder.decode(data)
    except RecursionError:
        raise refusal(whole, "is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise _field_error(error, refusal, whole) from error
    except UnicodeDecodeError:
        raise refusal(whole, "is not UTF-8") from None


def _field_error(
    error: msgspec.MsgspecError, refusal: type[FieldInvalid], whole: str
) -> FieldInvalid:
    located = _AT.fullmatch(str(error))
    field = located["field"] if located else ""
    cause = error.__cause__
    if isinstance(cause, FieldInvalid):  # raised by the type's own check
        return refusal(f"{field}.{cause.field}".lstrip("."), cause.rule)
    problem = located["problem"] if located else str(error)
    return refusal(field or whole, problem[:_SHOWN_MOST])


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def event_name(header: str, headers: Mapping[str, str]) -> str:
    """Return the event's name. Raises WebhookInvalid if the header has none."""
    name = headers.get(header.lower(), "")
    if _NAME.fullmatch(name) is None:
        raise WebhookInvalid(header, "must name the event")
    return name


def checked_delivery(header: str, id: str) -> str:
    """Return *id* if it can become part of a record's id. Raises WebhookInvalid."""
    if _DELIVERY.fullmatch(id) is None:
        raise WebhookInvalid(header, "must be an id of up to 128 letters, digits and hyphens")
    return id


def milliseconds(field: str, text: str) -> int:
    """Convert a forge's time to ms since 1970: `2026-01-01T10:00:00Z`, with a fraction or another
    zone, or `2026-01-01 10:00:00 UTC`. Raises WebhookInvalid.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise WebhookInvalid(field, "must be a time with its zone")
    zone = "+00:00" if found["zone"] in ("Z", "UTC") else found["zone"]
    try:
        return instant_ms(field, datetime.fromisoformat(f"{found['day']}T{found['clock']}{zone}"))
    except ValueError as error:
        raise WebhookInvalid(field, "must be a time between 1970 and 2169") from error


def branch_of(ref: str) -> str | None:
    """Return the branch that *ref* names; None for tags and other refs."""
    return ref.removeprefix(_BRANCHES) if ref.startswith(_BRANCHES) else None


def commit_or_none(sha: str | None) -> str | None:
    """Return *sha*; None if it is the zeros by which forges mean no commit."""
    return None if sha in NO_COMMIT else sha
