"""Checks of a caller's values: whole numbers in a range, bytes up to a size, texts of a length."""

from __future__ import annotations

from towpath.errors import InvalidOption, PayloadTooLarge

LARGEST_REASON = 4096
LARGEST_TRACEBACK = 4096
LARGEST_NOTE = 64 * 1024


def integer(option: str, value: int, least: int, most: int) -> int:
    """*value* if it is a whole number in that range, else InvalidOption."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption(option, value, rule=f"must be a whole number from {least} to {most}")
    return value


def check_size(what: str, value: bytes, limit: int) -> bytes:
    """*value* if it fits, else PayloadTooLarge."""
    if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption(what, type(value).__name__, rule="must be bytes")
    if len(value) > limit:
        raise PayloadTooLarge(what, len(value), limit=limit)
    return value


def shorten_reason(reason: str) -> str:
    """*reason* cut to the length that a job keeps. An error text of any length is a valid
    reason.
    """
    if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("reason", type(reason).__name__, rule="must be text")
    encoded = reason.encode(errors="backslashreplace")
    if not encoded:
        raise InvalidOption("reason", reason, rule="must not be empty")
    if len(encoded) <= LARGEST_REASON:
        return encoded.decode()
    return encoded[: LARGEST_REASON - 3].decode(errors="ignore") + "…"


def traceback_end(traceback: str) -> str:
    """The end of *traceback*, cut to the length that a job keeps: the end names the error and the
    frames nearest to it.
    """
    if not isinstance(traceback, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("traceback", type(traceback).__name__, rule="must be text")
    encoded = traceback.encode(errors="backslashreplace")
    if len(encoded) <= LARGEST_TRACEBACK:
        return encoded.decode()
    return "…" + encoded[3 - LARGEST_TRACEBACK :].decode(errors="ignore")
