"""Payloads and results: values of the handler's types in Python, JSON in the job.

JSON so that every language can submit and read; `bytes` are left as they are. What is sent is
read back before it is sent: a value that the handler could not take never leaves the process.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec

from towpath.errors import PayloadInvalid

T = TypeVar("T")


class Form(Protocol[T]):
    """How values of one type are written down."""

    def encode(self, value: T) -> bytes:
        """*value* as bytes. Raises PayloadInvalid."""
        ...

    def decode(self, data: bytes) -> T:
        """The value behind *data*. Raises PayloadInvalid."""
        ...


class Raw:
    """Bytes, as they are."""

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise PayloadInvalid("bytes", f"not {type(value).__name__}")
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class Json(Generic[T]):
    """Plain values, dataclasses, msgspec structs and whatever is made of them."""

    def __init__(self, kind: Any, named: str) -> None:
        self._named = named
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def encode(self, value: T) -> bytes:
        try:
            data = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadInvalid(self._named, str(error)) from error
        self.decode(data)
        return data

    def decode(self, data: bytes) -> T:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PayloadInvalid(self._named, str(error)[:500]) from error


def form(kind: Any, named: str) -> Form[Any]:
    """The form for values of *kind*, e.g. a handler's annotation; *named* is for messages.

    Raises TypeError for what can be neither.
    """
    if kind is bytes:
        return Raw()
    if _has_model(kind):
        # Only who has a model has paid for importing pydantic.
        from towpath.worker.modelled import Modelled  # noqa: PLC0415

        return Modelled[Any](kind, named)
    return Json[Any](kind, named)


def _has_model(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__") or any(map(_has_model, get_args(kind)))
