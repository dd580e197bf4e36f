"""Payloads, results and notes: bytes in the store, JSON or base64 outside."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from towpath.errors import InvalidOption
from towpath.web.bodies import too_deep


def shown(name: str, data: bytes) -> dict[str, Any]:
    """Bytes as the JSON they are, or in base64."""
    if not data:
        return {}
    try:
        if not too_deep(data):
            return {name: msgspec.json.decode(data)}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # not ours to judge: whoever submitted it may have meant just these bytes
    return {f"{name}_base64": base64.b64encode(data).decode()}


def from_base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidOption(name, "…", rule="must be base64") from error


def note(value: Any) -> bytes:
    """A JSON value as the store keeps it."""
    return msgspec.json.encode(value)
