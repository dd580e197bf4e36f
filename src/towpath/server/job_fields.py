"""The fields of a job over HTTP, derived from its attributes: their types in bodies and answers."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, create_model

from towpath.clock import Duration, seconds
from towpath.engine import fields
from towpath.engine.fields import Kind, Moment, Number, Pairs, Policy, Span
from towpath.engine.model import FIELDS, JobAttributes, JobOptions, with_own_attempts
from towpath.engine.spelling import POLICIES, read_retry, written
from towpath.web.fields import Headers, Instant, Seconds, Text

M = TypeVar("M", bound=BaseModel)

_UNITS: dict[type, str] = {
    Span: " In seconds.",
    Moment: " With a time zone.",
    Policy: f" As text: {POLICIES}.",
}
_PLAIN: dict[type, Any] = {Number: int, Moment: datetime, fields.Text: str}
_DEFAULTS = msgspec.structs.asdict(JobAttributes())
"""The default attributes of a job."""


def with_job_options(base: type[M], *, but: Collection[str] = ()) -> type[M]:
    """Returns *base* with a field for each attribute of a job, except those in *but*."""
    return _add_fields(
        base, {name: _body_field(name, field) for name, field in FIELDS.items() if name not in but}
    )


def with_job_attributes(base: type[M]) -> type[M]:
    """Returns *base* with the attributes of a job as fields of an answer; see `job_attributes`."""
    return _add_fields(base, {name: _answer_field(name) for name in _DEFAULTS})


def options_in(body: object) -> JobOptions:
    """The job options that a body sets."""
    values = {name: getattr(body, name, None) for name in FIELDS}
    given = {
        name: value
        for name, value in values.items()
        if value is not None and value != _DEFAULTS.get(name)
    }
    return with_own_attempts(cast("JobOptions", given))


def job_attributes(job: JobAttributes) -> dict[str, Any]:
    """The attributes of *job*, for an answer."""
    return {name: getattr(job, name) for name in _DEFAULTS}


def _add_fields(base: type[M], more: dict[str, tuple[Any, Any]]) -> type[M]:
    return create_model(base.__name__, __base__=base, **cast("Any", more))


def _body_field(name: str, field: fields.JobField) -> tuple[Any, Any]:
    """The type and the default of a field in a body."""
    kind: Kind = field.kind
    about = Field(description=field.about + _UNITS.get(type(kind), ""))
    form, usual = _form(kind), _DEFAULTS.get(name)
    if isinstance(usual, int):
        return Annotated[form, about], usual
    return Annotated[form | None, about], usual or None


def _form(kind: Kind) -> Any:
    match kind:
        case Number():
            return Annotated[int, Field(ge=kind.least, le=kind.most, strict=True)]
        case Span():
            least = Field(ge=kind.least.total_seconds())
            return Annotated[Seconds, least, AfterValidator(seconds)]
        case Moment():
            return Instant
        case fields.Text():
            return Text
        case Policy():
            return Annotated[str, Field(max_length=512), AfterValidator(read_retry)]
        case Pairs():
            return Headers


def in_seconds(span: Duration | None) -> float | None:
    """A duration for an answer. A duration of zero is falsy, so compare with None."""
    return None if span is None else span.total_seconds()


def _answer_field(name: str) -> tuple[Any, Any]:
    """The type and the default of a field in an answer."""
    kind, usual = FIELDS[name].kind, _DEFAULTS[name]
    about = Field(description=FIELDS[name].about)
    if isinstance(kind, Policy):
        as_text = BeforeValidator(lambda value: value and written(value))
        return Annotated[str | None, as_text, about], usual
    if isinstance(kind, Pairs):
        return Annotated[dict[str, str], BeforeValidator(dict), about], {}
    if isinstance(kind, Span):
        return Annotated[float | None, BeforeValidator(in_seconds), about], usual
    plain = _PLAIN[type(kind)]
    return Annotated[plain if isinstance(usual, int) else plain | None, about], usual
