"""Payloads and results that are pydantic models, or made of them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from towpath.errors import PayloadInvalid

T = TypeVar("T")


class Modelled(Generic[T]):
    """pydantic models and whatever is made of them."""

    def __init__(self, kind: Any, named: str) -> None:
        self._named = named
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def encode(self, value: T) -> bytes:
        try:
            return self._adapter.dump_json(self._adapter.validate_python(value))
        except (ValidationError, ValueError, TypeError) as error:
            raise PayloadInvalid(self._named, _short(error)) from error

    def decode(self, data: bytes) -> T:
        try:
            return self._adapter.validate_json(data)
        except ValidationError as error:
            raise PayloadInvalid(self._named, _short(error)) from error


def _short(error: Exception) -> str:
    """What is wrong, without the value: it may be secret, and it may be long."""
    if not isinstance(error, ValidationError):
        return str(error)[:500]
    first, *rest = error.errors(include_input=False, include_url=False, include_context=False)
    where = ".".join(str(part) for part in first["loc"]) or "value"
    more = f" (and {len(rest)} more)" if rest else ""
    return f"{where}: {first['msg']}{more}"
