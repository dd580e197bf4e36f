"""The Redis protocol: commands as bytes, error replies as exceptions, and keys as slots."""

from __future__ import annotations

import binascii
from typing import Any, cast

import hiredis
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType] -- typed in part

SLOTS = 16_384
_NUMBERS = (int, float)
_LARGE = 64 * 1024
"""Bytes from which on copying an argument costs more than the rest of a call."""


class RedisError(Exception):
    """A command failed instead of returning a reply. It may also raise OSError and TimeoutError:
    see TROUBLE.
    """


class ConnectionLost(RedisError):
    """The connection ended, could not be made, or sent bytes that are not the Redis protocol."""


class SlotUnknown(RedisError):
    """No server of the cluster is known to have the key's slot."""


class ErrorReply(RedisError):
    """Redis answered with an error; the text is that of Redis, without a leading `ERR`."""

    @property
    def code(self) -> str:
        """The first word, such as OOM, WRONGTYPE or NOSCRIPT."""
        return str(self).partition(" ")[0]


class LoginRefused(ErrorReply):
    """Redis refused the user's name or password, or requires a login."""


class ScriptUnknown(ErrorReply):
    """Redis does not have the script that a digest names."""


class Redirected(ErrorReply):
    """Another node of the cluster has the slot; with MOVED for good, with ASK for this call."""

    @property
    def is_moved(self) -> bool:
        return self.code == "MOVED"

    @property
    def target(self) -> tuple[int, str, int]:
        """The slot, and the other node's host and port. The host is empty if the node does not know
        under which name the other one is reached.
        """
        _, slot, place, *_ = str(self).split()
        host, _, port = place.rpartition(":")
        return int(slot), host, int(port)


TROUBLE = (TimeoutError, OSError, RedisError)
"""What a command may raise instead of returning a reply."""

_CLASSES: dict[str, type[ErrorReply]] = {
    "NOSCRIPT": ScriptUnknown,
    "MOVED": Redirected,
    "ASK": Redirected,
    "WRONGPASS": LoginRefused,
    "NOAUTH": LoginRefused,
}
_REFUSED_LOGINS = ("invalid password", "Client sent AUTH", "AUTH <password> called")
"""The beginnings of errors by which Redis refuses a login, in all its versions."""
_NOT_SERVING = ("LOADING ", "ERR max number of clients reached")
"""The beginnings of errors by which Redis serves no connection now, or not this one."""


def error_reply(text: str) -> RedisError:
    """The exception for an error that Redis replied with."""
    if text.startswith(_NOT_SERVING):
        return ConnectionLost(text)
    if text.startswith("ERR "):
        text = text[4:]
        return LoginRefused(text) if text.startswith(_REFUSED_LOGINS) else ErrorReply(text)
    return _CLASSES.get(text.partition(" ")[0], ErrorReply)(text)


def new_reader() -> hiredis.Reader:
    """A parser of replies. It returns an error reply as the exception that `error_reply` makes, and
    raises ConnectionLost for bytes that are not the Redis protocol.
    """
    return hiredis.Reader(
        protocolError=ConnectionLost, replyError=error_reply, notEnoughData=NOT_ENOUGH
    )


NOT_ENOUGH = object()
"""What a reader returns while the next reply is not complete."""


def encode_command(command: tuple[Any, ...]) -> list[bytes]:
    """*command* as it is sent. A last argument that is large is not copied: hiredis would copy it
    three times.
    """
    # hiredis crashes the process if a signal handler raises while it turns a number into text.
    command = tuple([str(word) if type(word) in _NUMBERS else word for word in command])
    last = command[-1]
    if type(last) not in (bytes, memoryview) or len(last) < _LARGE:
        return [cast("bytes", pack_command(command))]  # pyright: ignore[reportUnknownVariableType]
    words = cast("bytes", pack_command(command[:-1])).partition(b"\r\n")[2]  # pyright: ignore[reportUnknownVariableType]
    return [b"*%d\r\n%b$%d\r\n" % (len(command), words, len(last)), last, b"\r\n"]


def slot_of(key: str) -> int:
    """The slot of *key* in a cluster: that of the text in its first braces, if it has some."""
    text = key.encode()
    start = text.find(b"{")
    if start >= 0:
        end = text.find(b"}", start + 1)
        if end > start + 1:
            text = text[start + 1 : end]
    return binascii.crc_hqx(text, 0) % SLOTS
