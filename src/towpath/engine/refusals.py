"""What an error of Redis means: temporary trouble, a refusal of the call, or a defect."""

from __future__ import annotations

import re
from collections.abc import Callable

from towpath.engine.options import LAYOUT
from towpath.engine.resp import ConnectionLost, LoginRefused, Redirected, SlotUnknown
from towpath.engine.tls import failed_handshake
from towpath.errors import (
    CallStale,
    CallTaken,
    LayoutDiffers,
    MemoryFull,
    ScriptDefect,
    ServerError,
    ServerRefused,
    WrongKeyType,
)


class QueueUnknown(ServerError):
    """Redis has no options of the queue yet. The engine stores them and repeats the call."""

    code = "queue_unknown"
    external = False


class QueueChanged(ServerError):
    """The queue's options have changed. The engine reads them and repeats the call."""

    code = "queue_changed"
    external = False


_TEMPORARY = (ConnectionLost, TimeoutError, OSError, Redirected, SlotUnknown)
"""Temporary trouble: a fail-over, a restart, a slot that is being moved, a full disk."""
_TEMPORARY_TEXT = re.compile(
    r"-?\b(?:READONLY|LOADING|BUSY|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|MISCONF)\b"
    r"|non local key|read only replica"
)
"""The same in the text of an error: Redis wraps an error inside a script into another one."""
_NOT_ALLOWED = re.compile(r"\b(?:NOPERM|ACL failure|can't run this command|can't access)\b")

CALL_WORDS: dict[str, Callable[[str], ServerError]] = {
    "QUEUE_UNKNOWN": QueueUnknown,
    "QUEUE_CHANGED": QueueChanged,
    "LAYOUT_DIFFERS": lambda text: LayoutDiffers(text.split()[1].strip("{}"), LAYOUT),
    "CALL_TAKEN": lambda text: CallTaken(
        f"the call number was used for a {text.split()[1]} before"
    ),
    "CALL_STALE": lambda text: CallStale(int(text.split()[1])),
}
"""The words by which a script refuses a whole call; a test compares them with the Lua."""


_KEY = re.compile(r"\{[^}]+\}")


def translate_error(error: Exception, key: str = "") -> ServerError | None:
    """Towpath's error for an error of Redis; None for temporary trouble. *key* is one of the keys
    of the call, which all have the same hash tag.
    """
    text = str(error)
    if isinstance(error, LoginRefused):
        return ServerRefused(text)
    if (failed := failed_handshake(error)) is not None:
        return failed
    if isinstance(error, _TEMPORARY) or _TEMPORARY_TEXT.search(text):
        return None
    if (word := text.partition(" ")[0]) in CALL_WORDS:
        return CALL_WORDS[word](text)
    if text.startswith("OOM ") or "'maxmemory'" in text:
        return MemoryFull("the server's memory is full")
    if "WRONGTYPE" in text:
        tag = _KEY.match(key)
        return WrongKeyType(tag[0] if tag else key)
    # A command that the user may not run inside a script is reported as an error of the script.
    defect = "user_script" in text and not _NOT_ALLOWED.search(text)
    return ScriptDefect(text) if defect else ServerRefused(text)
