"""JSON from outside into values, with an error that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from towpath.apps.reviews.errors import FieldInvalid

T = TypeVar("T")

_AT = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<field>.*)`", re.DOTALL)
_SHOWN_MOST = 200


def decoded(
    decoder: msgspec.json.Decoder[T], data: bytes, *, refusal: type[FieldInvalid], whole: str
) -> T:
    """The value behind *data*, or *refusal* with the field's path; *whole* names the data itself.

    Depth is bounded by the decoder: known fields have their shape, unknown ones are skipped.
    """
    try:
        return decoder.decode(data)
    except RecursionError:
        raise refusal(whole, "is nested too deep") from None
    except msgspec.MsgspecError as error:
        raise _located(error, refusal, whole) from error
    except UnicodeDecodeError:
        raise refusal(whole, "is not UTF-8") from None


def _located(error: msgspec.MsgspecError, refusal: type[FieldInvalid], whole: str) -> FieldInvalid:
    said = _AT.fullmatch(str(error))
    field = said["field"] if said else ""
    cause = error.__cause__
    if isinstance(cause, FieldInvalid):  # a rule of the value itself
        return refusal(f"{field}.{cause.field}".lstrip("."), cause.rule)
    problem = said["problem"] if said else str(error)
    return refusal(field or whole, problem[:_SHOWN_MOST])
