"""Payloads and results that are pydantic models, or contain them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from towpath.errors import PayloadInvalid
from towpath.worker.payload import EMPTY, digest_of

T = TypeVar("T")
_NOT_THE_SAME = "would lose data when it is stored and read back"


class PydanticCodec(Generic[T]):
    """Values that are pydantic models or contain them."""

    def __init__(self, kind: Any, named: str) -> None:
        self._kind, self._named = kind, named
        try:
            self._adapter: TypeAdapter[T] = TypeAdapter(kind)
        except PydanticUserError as error:
            raise TypeError(error.message.partition("\n")[0]) from error

    def encode(self, value: T) -> bytes:
        """Returns *value* as JSON, by the aliases of its fields, which other languages know.

        Refuses a value that would not be the same when it is read back, such as one with excluded
        or masked fields.
        """
        try:
            checked = self._adapter.validate_python(value)
            data, where = self._encode_and_compare(checked, by_alias=True)
            if where is not None:
                # An alias may be for writing only; then the fields' own names are used.
                data, still = self._encode_and_compare(checked, by_alias=False)
                where = None if still is None else where
        except (ValueError, TypeError, RecursionError) as error:
            raise PayloadInvalid(self._named, _short(error)) from error
        if where is not None:
            raise PayloadInvalid(self._named, where)
        return data

    def decode(self, data: bytes) -> T:
        if not data:
            raise PayloadInvalid(self._named, EMPTY)
        try:
            return self._adapter.validate_json(data)
        except ValidationError as error:
            raise PayloadInvalid(self._named, _short(error)) from error

    def digest(self) -> str:
        return digest_of(self._kind, lambda _: self._adapter.json_schema())

    def _encode_and_compare(self, value: T, *, by_alias: bool) -> tuple[bytes, str | None]:
        """Returns *value* as JSON, and how it differs when it is read back (None = it does not)."""
        data = self._adapter.dump_json(value, by_alias=by_alias, round_trip=True)
        try:
            where = _difference(value, self._adapter.validate_json(data))
        except ValidationError as error:
            return data, f"could not be read back: {_short(error)}"
        return data, None if where is None else f"{where or 'value'}: {_NOT_THE_SAME}"


def _difference(sent: Any, arrived: Any) -> str | None:
    """Returns where the two values differ, "" = as a whole; None = they are the same.

    Does not use `==` on models: private attributes are not stored, and NaN does not equal itself.
    """
    parts, others = _parts(sent), _parts(arrived)
    if parts is not None and others is not None and _shape(sent) is _shape(arrived):
        return _different_part(parts, dict(others))
    # Objects of a class without `__eq__` can't be compared; they count as the same.
    incomparable = type(sent) is type(arrived) and type(sent).__eq__ is object.__eq__
    same = incomparable or sent == arrived or (sent != sent and arrived != arrived)  # noqa: PLR0124 -- NaN
    return None if same else ""


def _different_part(sent: Iterable[tuple[Any, Any]], arrived: dict[Any, Any]) -> str | None:
    for name, value in sent:
        where = _difference(value, arrived.pop(name)) if name in arrived else ""
        if where is not None:
            return f"{name}.{where}" if where else str(name)
    return next(map(str, arrived), None)


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Returns the parts of *value* by name or position; None if it has no parts."""
    match value:
        case BaseModel():
            own = [(name, getattr(value, name, None)) for name in type(value).model_fields]
            return own + list((value.model_extra or {}).items())
        case dict():
            return cast("dict[Any, Any]", value).items()
        case list() | tuple():
            return enumerate(cast("list[Any]", value))
        case _ if is_dataclass(value):
            return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
        case _:
            return None


def _shape(value: Any) -> Any:
    """Returns the class of *value*; all lists and tuples count as list, all dicts as dict, because
    JSON has one kind of each.
    """
    if isinstance(value, list | tuple):
        return list
    return cast("Any", dict if isinstance(value, dict) else type(value))


def _short(error: Exception) -> str:
    """Returns what is wrong, without the value, which may be secret or long."""
    if not isinstance(error, ValidationError):
        return str(error)[:500]
    first, *rest = error.errors(include_input=False, include_url=False, include_context=False)
    where = ".".join(str(part) for part in first["loc"]) or "value"
    more = f" (and {len(rest)} more)" if rest else ""
    return f"{where}: {first['msg']}{more}"
