"""Outgoing HTTP calls that reach only what they may, and the signatures of both directions."""

from typing import TYPE_CHECKING

from towpath.calls.answer import Advice, Answer, Next, advice
from towpath.calls.errors import (
    AnswerTooLarge,
    CallerClosed,
    CallError,
    CallFailed,
    CallRefused,
    SecretInvalid,
    SignatureMissing,
    SignatureRefused,
    SignatureStale,
    SignatureWrong,
)
from towpath.calls.signature import (
    Purpose,
    Verified,
    derived,
    headers_for,
    message_id,
    new_secret,
    sign,
    verify,
)

if TYPE_CHECKING:
    from towpath.calls.caller import Caller

__all__ = [
    "Advice",
    "Answer",
    "AnswerTooLarge",
    "CallError",
    "CallFailed",
    "CallRefused",
    "Caller",
    "CallerClosed",
    "Next",
    "Purpose",
    "SecretInvalid",
    "SignatureMissing",
    "SignatureRefused",
    "SignatureStale",
    "SignatureWrong",
    "Verified",
    "advice",
    "derived",
    "headers_for",
    "message_id",
    "new_secret",
    "sign",
    "verify",
]


def __getattr__(name: str) -> object:
    """The caller needs an HTTP client, which is an extra; who checks a signature needs none."""
    if name == "Caller":
        from towpath.calls.caller import Caller  # noqa: PLC0415 -- an extra

        return Caller
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
