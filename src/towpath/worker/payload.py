"""Payloads and results: values of the handler's types in Python, JSON in the job.

JSON, so that programs in every language can submit jobs and read results; `bytes` are left as they
are. Each value is read back before it is sent, so that one which the handler could not take is
refused where it is submitted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from towpath.errors import PayloadInvalid

T = TypeVar("T")
EMPTY = "the job has no payload; if it has a record, declare the handler with `record=True`"
"""For an empty payload: jobs with a record have theirs in the row, not in Redis."""


class PayloadForm(Protocol[T]):
    """Encodes and decodes values of one type."""

    def encode(self, value: T) -> bytes:
        """Returns *value* as bytes. Raises PayloadInvalid."""
        ...

    def decode(self, data: bytes) -> T:
        """Returns the value that *data* encodes. Raises PayloadInvalid."""
        ...

    def digest(self) -> str:
        """A short hash of the type, the same in every process; empty = every value fits."""
        ...


class Raw:
    """Bytes, as they are."""

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise PayloadInvalid("bytes", f"not {type(value).__name__}")
        return value

    def decode(self, data: bytes) -> bytes:
        return data

    def digest(self) -> str:
        return ""


class Json(Generic[T]):
    """JSON of plain values, dataclasses, msgspec structs and collections of them."""

    def __init__(self, kind: Any, named: str) -> None:
        self._kind, self._named = kind, named
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def encode(self, value: T) -> bytes:
        try:
            data = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadInvalid(self._named, str(error)) from error
        if b"null" in data:
            _refuse_no_numbers(self._named, value)
        self.decode(data)
        return data

    def decode(self, data: bytes) -> T:
        if not data:
            raise PayloadInvalid(self._named, EMPTY)
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PayloadInvalid(self._named, str(error)[:500]) from error

    def digest(self) -> str:
        return digest_of(self._kind, msgspec.json.schema)


def digest_of(kind: Any, schema: Callable[[Any], dict[str, Any]]) -> str:
    """Returns a short hash of the JSON schema of *kind*, or of its name if it has no schema; empty
    for Any.
    """
    try:
        found = _canonical(schema(kind))
    except Exception:  # noqa: BLE001 -- the schema of the user's own type may be user code
        found = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"
    if not found:
        return ""
    text = msgspec.json.encode(found, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]


def _canonical(schema: Any) -> Any:
    """Returns *schema* without titles, descriptions, examples and defaults, and with alternatives
    sorted: these may differ from process to process.
    """
    if isinstance(schema, list):
        return [_canonical(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", schema).items():
        if name in _NAMED_PARTS and isinstance(value, dict):
            parts = cast("dict[str, Any]", value)
            found[name] = {part: _canonical(inner) for part, inner in parts.items()}
        elif name in _UNORDERED and isinstance(value, list):
            parts = [_canonical(part) for part in cast("list[Any]", value)]
            found[name] = sorted(parts, key=msgspec.json.encode)
        elif name not in _FOR_PEOPLE:
            found[name] = _canonical(value)
    return found


_DIGEST_LENGTH = 8
_NAMED_PARTS = ("properties", "$defs", "patternProperties", "mapping")
"""Parts of a schema that are mappings with names from the user: these names are kept."""
_UNORDERED = ("anyOf", "oneOf", "enum", "required", "type")
_FOR_PEOPLE = ("title", "description", "examples", "default")


def _refuse_no_numbers(named: str, value: Any) -> None:
    """Refuse NaN and infinity: they would be written as null, and read back as None."""
    left: list[Any] = [msgspec.to_builtins(value, str_keys=True)]
    while left:
        part = left.pop()
        if isinstance(part, float) and not math.isfinite(part):
            raise PayloadInvalid(named, f"{part} is not a number in JSON")
        if isinstance(part, dict):
            left += cast("dict[str, Any]", part).values()
        elif isinstance(part, list | tuple):
            left += cast("list[Any]", part)


class WithDefault:
    """Values of a parameter with a default: an empty payload means the default."""

    def __init__(self, form: PayloadForm[Any], default: Any) -> None:
        self._form, self._default = form, default

    def encode(self, value: Any) -> bytes:
        return self._form.encode(value)

    def decode(self, data: bytes) -> Any:
        # JSON is never empty, but raw bytes may be: for these, the default itself was sent.
        return self._form.decode(data) if data or isinstance(self._form, Raw) else self._default

    def digest(self) -> str:
        inner = self._form.digest()
        return f"{inner}?" if inner else ""  # "?": it takes jobs without a payload, too

    def nothing(self) -> bytes:
        """Returns the payload to send if no value was given."""
        return self._form.encode(self._default) if isinstance(self._form, Raw) else b""


def form(kind: Any, named: str) -> PayloadForm[Any]:
    """Returns the form for values of *kind*, e.g. a handler's annotation; *named* is for messages.

    Raises TypeError if values of *kind* can't be written as JSON.
    """
    if kind is bytes:
        return Raw()
    if _has_model(kind):
        # Imported only for models, because importing pydantic is slow.
        from towpath.worker.pydantic_codec import PydanticCodec  # noqa: PLC0415

        return PydanticCodec[Any](kind, named)
    return Json[Any](kind, named)


def _has_model(kind: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether *kind* is or contains a pydantic model, e.g. in a list or a field."""
    if hasattr(kind, "__pydantic_validator__"):
        return True
    made = get_origin(kind) or kind
    inner = get_args(kind) if made in seen else (*get_args(kind), *_fields(made))
    return any(_has_model(part, seen | {made}) for part in inner)


def _fields(kind: Any) -> Iterable[Any]:
    if not isinstance(kind, type) or not any(
        hasattr(kind, attribute) for attribute in _MADE_OF_FIELDS
    ):
        return ()
    try:
        return get_type_hints(kind).values()
    except (NameError, TypeError):
        return ()  # the decoder for *kind* raises a better error


_MADE_OF_FIELDS = ("__dataclass_fields__", "__struct_fields__", "__total__", "_fields")
"""Attributes that mark dataclasses, msgspec structs, TypedDicts and NamedTuples."""
