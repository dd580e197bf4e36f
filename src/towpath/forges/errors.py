"""Errors of webhooks; errors of a forge's API are in `calls/errors.py`.

InvalidInput
└── FieldInvalid            a field breaks its rule
    └── WebhookInvalid      a webhook differs from what its forge documents
SignatureRefused
└── SignatureInvalid        a webhook's signature is missing or wrong

Messages never show a value of a webhook, a secret or a signature; they name the field and the rule.
"""

from __future__ import annotations

from towpath.calls.errors import SignatureRefused
from towpath.errors import InvalidInput


class FieldInvalid(InvalidInput):
    """A field breaks a rule. The message names the field and the rule, but not the value."""

    code = "field_invalid"
    remedy = "Send a value that follows the rule in the message."

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field, self.rule = field, rule


class WebhookInvalid(FieldInvalid):
    """The webhook is signed, but not as its forge documents it; nothing was stored."""

    code = "webhook_invalid"
    remedy = "Compare the webhook's settings with the how-to, then redeliver it from the forge."


class SignatureInvalid(SignatureRefused):
    """The webhook's signature is missing or matches no secret."""

    code = "signature_invalid"
    remedy = (
        "Use the same secret here and in the forge's webhook. During a rotation, use both here."
    )

    def __init__(self, header: str, problem: str) -> None:
        super().__init__(f"{header} {problem}")
        self.header = header
