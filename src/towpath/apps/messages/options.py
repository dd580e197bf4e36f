"""The options of the application: where messages are pushed, and how outgoing calls are made."""

from __future__ import annotations

from typing import Annotated

from towpath.apps.messages.model import PROCESSING_TTL
from towpath.calls.guard import Guard, parse_target
from towpath.calls.signature import sign
from towpath.clock import Duration, duration_ms, seconds
from towpath.errors import InvalidOption
from towpath.options import Allowed, FieldInfo, Options, Secret, Signing

PUSH, CALLBACK = "push", "callback"
"""The kinds of its outgoing calls; each kind is signed with its own secret."""


class MessagesOptions(Options, frozen=True, kw_only=True):
    """How messages leave."""

    worker_url: Annotated[Secret | None, FieldInfo(also=("messages_worker_url",))] = None
    """URL to push messages to; none = workers pull them."""
    secrets: Signing = ()
    allow: Allowed = ()
    push_within: Duration = PROCESSING_TTL
    """How long the worker may take to answer a message."""
    callback_within: Duration = seconds(15)
    """How long a receiver may take to accept an answer."""
    shared: bool = False
    """Whether all keys may read and cancel each other's messages. If not, a message belongs to the
    owner of the key that sent it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for secret in self.secrets:
            sign(secret, "check", 0, b"")
        Guard(self.allow)
        duration_ms("push_within", self.push_within, least=seconds(0.001))
        duration_ms("callback_within", self.callback_within, least=seconds(0.001))
        if self.worker_url is not None:
            parse_target(self.worker_url)
            if not self.secrets:
                raise InvalidOption(
                    "secrets", "none", rule="is required for pushes: they are signed"
                )

    @property
    def worker_host(self) -> str | None:
        """The host of `worker_url`. It may be private, as the operator has set it."""
        return parse_target(self.worker_url).host if self.worker_url else None
