"""Errors of outgoing calls, and of the signatures of incoming ones.

CallError
├── CallRefused         the URL leads to a forbidden address; nothing was sent
├── CallFailed          no complete answer came: name, connection, certificate, time
├── AnswerTooLarge      the answer is larger than the limit
├── AnswerRefused       the receiver did not accept the call, and may later
│   └── RefusedForGood  the receiver will never accept the call
└── CallerClosed        the caller was not entered, or was left
SignatureRefused        the sender does not have the secret, or the message is not recent
├── SignatureMissing · SignatureStale · SignatureWrong
InvalidInput
└── SecretInvalid       a secret of the wrong form

Messages show only host and port of a URL, because paths and queries carry tokens. They never show
a header, a body or a secret.
"""

from __future__ import annotations

from towpath.clock import ZERO, Duration
from towpath.errors import InvalidInput, RetryAdvice, TowpathError


class CallError(TowpathError):
    """An outgoing call failed."""

    code = "call_error"
    external = True


class CallRefused(CallError):
    """The URL, or the address behind it, is not allowed. Nothing was sent."""

    code = "call_refused"
    remedy = "Use a public http or https address, or allow the host or network by configuration."

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place, self.reason = place, reason


class CallFailed(CallError):
    """No complete response came. The receiver may or may not have got the message."""

    code = "call_failed"
    remedy = (
        "Call again later with the same message id. Check the host, its certificate and the "
        "receiver."
    )
    retry = RetryAdvice.LATER

    def __init__(self, place: str, reason: str, *, sent: bool = True) -> None:
        super().__init__(f"{place}: {reason}")
        self.place, self.reason = place, reason
        self.sent = sent
        """Whether something may have been sent; False where there was no connection."""


class AnswerTooLarge(CallError):
    """The response is too large and was dropped; `status` has its status."""

    code = "answer_too_large"
    remedy = "Make the receiver send a smaller response, or raise the limit."

    def __init__(self, place: str, *, status: int, limit: int) -> None:
        super().__init__(f"{place}: the response ({status}) has more than {limit} bytes")
        self.place, self.status, self.limit = place, status, limit


class AnswerRefused(CallError):
    """The receiver refused the call for now."""

    code = "answer_refused"
    remedy = "Try again later; check the receiver and the key used to call it."
    retry = RetryAdvice.LATER

    def __init__(
        self, who: str, status: int, why: str = "", *, after: Duration = ZERO, asked: str = "later"
    ) -> None:
        super().__init__(f"{who} answered {status}{f': {why}' if why else ''}")
        self.status, self.after = status, after
        self.asked = asked
        """What to do after the answer: a value of `Next`."""


class RefusedForGood(AnswerRefused):
    """The receiver refused the call for good."""

    code = "refused_for_good"
    remedy = "Check what was sent and where; repeating the call would fail the same way."
    retry = RetryAdvice.NEVER


class CallerClosed(CallError):
    """The caller is not open; it has no connections."""

    code = "caller_closed"
    external = False
    remedy = "Make the call inside `async with Caller(…)`."

    def __init__(self) -> None:
        super().__init__("the caller is not open")


class SignatureRefused(TowpathError):
    """The message's signature is not valid."""

    code = "signature_refused"
    remedy = "Discard the message."


class SignatureMissing(SignatureRefused):
    """A header of the signature is missing or can't be read."""

    code = "signature_missing"
    remedy = (
        "Send the headers of Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature."
    )

    def __init__(self, header: str) -> None:
        super().__init__(f"{header} is missing or can't be read")
        self.header = header


class SignatureStale(SignatureRefused):
    """The message is too old or too far in the future: it may be a replay."""

    code = "signature_stale"
    remedy = "Sign each attempt with its own time. Compare the clocks of both sides."

    def __init__(self, *, off: int, tolerance: int) -> None:
        side = "old" if off > 0 else "in the future"
        super().__init__(f"the message is {abs(off)} s {side}; the limit is {tolerance} s")
        self.off, self.tolerance = off, tolerance


class SignatureWrong(SignatureRefused):
    """No signature of the message matches a secret."""

    code = "signature_wrong"
    remedy = "Check that both sides use the same secret, and that the raw body is verified."

    def __init__(self) -> None:
        super().__init__("no signature matches")


class SecretInvalid(InvalidInput):
    """The secret has the wrong form; it is not shown."""

    code = "secret_invalid"
    remedy = "Use whsec_ followed by 24 to 64 random bytes in base64; `new_secret()` makes one."

    def __init__(self, rule: str) -> None:
        super().__init__(f"the secret {rule}")
