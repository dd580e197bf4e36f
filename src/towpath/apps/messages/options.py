"""The options of the application: where messages are pushed, and how outgoing calls are made."""

from __future__ import annotations

import msgspec

from towpath.apps.messages.model import PROCESSING_TTL
from towpath.calls.guard import Guard
from towpath.calls.signature import sign
from towpath.calls.target import parse_target
from towpath.clock import Duration, duration_ms, seconds
from towpath.errors import InvalidOption


class MessagesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How messages leave. Shown without URL and secrets: both give access to somebody's server."""

    worker_url: str | None = None
    """Where each message is pushed; none = consumers pull."""
    secrets: tuple[str, ...] = ()
    """With what pushes and callbacks are signed: one, or two during a rotation (`whsec_…`)."""
    allow: tuple[str, ...] = ()
    """Networks, addresses and hosts that callbacks may reach beside public ones."""
    push_within: Duration = PROCESSING_TTL
    """How long the worker may take to answer a message."""
    callback_within: Duration = seconds(15)
    """How long a receiver may take to accept an answer."""

    def __post_init__(self) -> None:
        for secret in self.secrets:
            sign(secret, "check", 0, b"")
        Guard(self.allow)
        duration_ms("push_within", self.push_within, least=seconds(0.001))
        duration_ms("callback_within", self.callback_within, least=seconds(0.001))
        if self.worker_url is not None:
            parse_target(self.worker_url)
            if not self.secrets:
                raise InvalidOption("secrets", "none", rule="a push needs one to be signed with")

    def __repr__(self) -> str:
        pushes = "pushes" if self.worker_url else "no pushes"
        return f"MessagesOptions({pushes}, {len(self.secrets)} secrets)"

    @property
    def worker_host(self) -> str | None:
        """The host that the operator trusts by naming it."""
        return parse_target(self.worker_url).host if self.worker_url else None
