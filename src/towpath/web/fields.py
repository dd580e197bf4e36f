"""What bodies are made of: their fields, what a number, a time or a text may be."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_FIELDS_MOST = 64
Json = Any
"""A JSON value. What was sent was parsed, and what is stored is parsed to be shown: to look at
each value of it once more would take longer than all else.
"""


def _few_fields(data: Any) -> Any:
    """Refuse an object of many fields whole, before each of them is refused by name."""
    if isinstance(data, dict) and len(data) > _FIELDS_MOST:  # pyright: ignore[reportUnknownArgumentType] -- only counted
        raise ValueError(f"more than {_FIELDS_MOST} fields")
    return data  # pyright: ignore[reportUnknownVariableType] -- as it came


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be an ISO time, as text")  # noqa: TRY004 -- pydantic's way to refuse
    return value


# Strict: `true` is not 1, and "1" is a text.
Seconds = Annotated[float, Field(ge=0, le=3_155_760_000, allow_inf_nan=False, strict=True)]
LeaseSeconds = Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False, strict=True)]
Text = Annotated[str, Field(min_length=1, max_length=512)]
Instant = Annotated[datetime, BeforeValidator(_text)]
Headers = Annotated[dict[str, str], BeforeValidator(_few_fields)]
Token = Annotated[int, Field(ge=1, le=2**63 - 1, strict=True, description="What the claim gave.")]


class Body(BaseModel):
    """A request's body: what it does not know, it refuses."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        return _few_fields(data)


class Answer(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def example(**values: Any) -> ConfigDict:
    """What one looks like, for the description."""
    return ConfigDict(json_schema_extra={"examples": [values]})
