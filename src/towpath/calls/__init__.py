"""Outgoing HTTP calls that reach only what they may, and the signatures of both directions."""

from towpath.calls.answer import Advice, Answer, Next, advice
from towpath.calls.caller import Caller
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
