"""Types of the HTTP API: fields of bodies, names in paths, payloads."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Annotated, Any, TypeVar, cast, get_args
from urllib.parse import unquote

import msgspec
from fastapi import Path
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)
from starlette.types import Scope

from towpath.errors import InvalidOption
from towpath.options import docstrings_of

A = TypeVar("A", bound="Answer")
_FIELDS_MOST = 64
Json = Any
"""A JSON value that pydantic does not check. It is parsed already, and a check of each value in it
would take longer than the rest of the request.
"""


def _few_fields(data: Any) -> Any:
    """Raises ValueError for too many fields, before pydantic refuses each of them by name."""
    if isinstance(data, dict) and len(data) > _FIELDS_MOST:  # pyright: ignore[reportUnknownArgumentType] -- only counted
        raise ValueError(f"more than {_FIELDS_MOST} fields")
    return data  # pyright: ignore[reportUnknownVariableType] -- as it came


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be an ISO time, as text")  # noqa: TRY004 -- pydantic expects it
    return value


# Strict: neither `true` nor "1" is accepted as 1.
Seconds = Annotated[float, Field(ge=0, le=3_155_760_000, allow_inf_nan=False, strict=True)]
LeaseSeconds = Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False, strict=True)]
Text = Annotated[str, Field(min_length=1, max_length=512)]
Instant = Annotated[datetime, BeforeValidator(_text)]
Headers = Annotated[dict[str, str], BeforeValidator(_few_fields)]
InSeconds = Annotated[float, BeforeValidator(timedelta.total_seconds)]
"""A duration of an answer."""
Token = Annotated[
    int, Field(ge=1, le=2**63 - 1, strict=True, description="The token that came with the lease.")
]


class Body(BaseModel):
    """A request's body. Refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        return _few_fields(data)


class Answer(BaseModel):
    """An answer's body; made of whatever has attributes of its fields' names."""

    model_config = ConfigDict(use_attribute_docstrings=True, from_attributes=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Raises TypeError if a field of a struct has to be declared again."""
        fields = cls.model_fields.items()
        missing = [name for name, field in fields if _Undeclared in field.metadata]
        if missing and cls.__module__ != __name__:
            raise TypeError(f"{cls.__name__} does not declare how it shows {', '.join(missing)}")


class _Undeclared:
    """Stands for the type of a field that HTTP shows in another form than Python."""


def answer_from(
    struct: type[msgspec.Struct], *, base: type[A] = Answer, but: Collection[str] = ()
) -> type[A]:
    """Returns *base* with the fields of *struct*, except those in *but*.

    Names, order, types, defaults and docstrings are those of the struct; only None is called null.
    The class that inherits from it declares further fields. It declares a field again to show it
    in another form; it has to, for a nested struct, bytes or a duration.
    """
    texts: dict[str, str] = {}
    for kind in reversed(struct.__mro__[: struct.__mro__.index(msgspec.Struct)]):
        texts |= docstrings_of(kind)
    fields = {
        field.name: _answer_field(field, texts.get(field.name))
        for field in msgspec.structs.fields(struct)
        if field.name not in but and field.name not in base.model_fields
    }
    # The fields are described. pydantic would look for their docstrings in the source of every
    # caller: that takes 6 ms for each struct when the server starts, all the rest takes 1.4 ms.
    no_docstrings = {"use_attribute_docstrings": False}
    made = create_model(
        struct.__name__, __base__=base, __cls_kwargs__=no_docstrings, **cast("Any", fields)
    )
    made.model_config["use_attribute_docstrings"] = True  # for the class that inherits from it
    return made


def _answer_field(field: msgspec.structs.FieldInfo, text: str | None) -> tuple[Any, Any]:
    """The type and the default of a field in an answer."""
    about = text and _NONE.sub("null", _NONE_FIRST.sub("Null", text))
    kind = field.type if _is_json(field.type) else Annotated[Any, _Undeclared]
    if field.default_factory is not msgspec.NODEFAULT:
        return kind, Field(default_factory=field.default_factory, description=about)
    return kind, Field(... if field.required else field.default, description=about)


_NONE_FIRST = re.compile(r"(?:^|(?<=[.] ))None\b")
"""Matches at the beginning of a sentence."""
_NONE = re.compile(r"\bNone\b")


def _is_json(kind: Any) -> bool:
    """Whether values of a type are the same in Python and in JSON."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct | bytes | timedelta):
        return False
    return all(map(_is_json, get_args(kind)))


def alike(kind: type[BaseModel], thing: object, *, but: Collection[str]) -> dict[str, Any]:
    """The values of *thing* for all fields of *kind*, except those in *but*."""
    return {name: getattr(thing, name) for name in kind.model_fields if name not in but}


def example(**values: Any) -> ConfigDict:
    """The configuration of a model with an example for OpenAPI."""
    return ConfigDict(json_schema_extra={"examples": [values]})


# ── names in paths ───────────────────────────────────────────────────────────────────────

# A slash inside a name is written %2F, so paths are matched as they were sent.

PREFIX = "/api/v1/"
PAGES = "/ui/"
"""Where the pages of the dashboard are."""
WEBHOOKS = f"{PREFIX}webhooks/"
"""Path prefix of webhooks. Forges have no API key: they sign what they send."""


def keep_as_sent(scope: Scope) -> None:
    """Match the path undecoded: `jobs/a%2Fexplain` is a job's id, `jobs/a/explain` another path."""
    if scope["path"].startswith((PREFIX, PAGES)) and "raw_path" in scope:
        scope["path"] = scope["raw_path"].decode("ascii", "replace")


def decoded(name: str) -> str:
    """A name without percent encoding. Raises ValueError if it is not UTF-8."""
    return unquote(name, errors="strict") if "%" in name else name


Queue = Annotated[
    str,
    Field(max_length=64),
    BeforeValidator(decoded),
    Path(
        examples=["thumbnails"],
        json_schema_extra={"pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"},
    ),
]
Id = Annotated[str, Field(max_length=512), BeforeValidator(decoded), Path(examples=["mail-17"])]
Lane = Annotated[str, Field(max_length=512), BeforeValidator(decoded), Path(examples=["ann"])]
ScheduleName = Annotated[
    str, Field(max_length=256), BeforeValidator(decoded), Path(examples=["nightly"])
]


# ── payloads, results and notes: bytes in Redis, JSON or base64 over HTTP ────────────────


def json_field(name: str, data: bytes) -> dict[str, Any]:
    """A field with the bytes as JSON, or in base64 if they are not JSON."""
    if not data:
        return {}
    try:
        if not too_deep(data):
            return {name: msgspec.json.decode(data)}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # not JSON, which is no error: the bytes are sent in base64
    return {f"{name}_base64": base64.b64encode(data).decode()}


def from_base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidOption(name, "…", rule="must be base64") from error


def encode_json(value: Any) -> bytes:
    """A JSON value as the bytes that are stored."""
    return msgspec.json.encode(value)


DEPTH_MOST = 64
"""Maximum nesting of JSON."""
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Matches at every quotation mark, also without an end, so that it reads each byte once."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def too_deep(body: bytes) -> bool:
    """Whether JSON is nested deeper than DEPTH_MOST. Takes linear time, and runs in C."""
    if body.count(b"[") + body.count(b"{") <= DEPTH_MOST:
        return False
    steps = _STRINGS.sub(b"", body).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEPTH_MOST
