"""`answer_from`: answers whose fields are those of a struct."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from pydantic import create_model

from towpath.clock import instant, seconds
from towpath.web.fields import Answer, InSeconds, answer_from


class Berth(msgspec.Struct, frozen=True):
    """A place in a harbour."""

    number: int
    """From 1."""
    boat: str | None = None
    """None while the berth is free. None also for guests."""
    since: datetime | None = None


class Harbour(msgspec.Struct, frozen=True):
    """A harbour."""

    berths: tuple[Berth, ...]
    opens_in: timedelta


class BerthOut(answer_from(Berth)):
    """A berth."""


class HarbourOut(answer_from(Harbour)):
    """A harbour, with a name."""

    berths: list[BerthOut]
    opens_in: InSeconds


def properties(kind: type[Answer]) -> dict[str, Any]:
    return kind.model_json_schema()["properties"]


def test_an_answer_has_the_fields_of_its_struct_in_their_order() -> None:
    assert list(properties(BerthOut)) == ["number", "boat", "since"]
    assert properties(BerthOut)["boat"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "default": None,
        "title": "Boat",
        "description": "Null while the berth is free. Null also for guests.",
    }


def test_an_answer_is_made_of_a_struct_and_the_structs_in_it() -> None:
    harbour = Harbour((Berth(1, "Argo", instant(0)), Berth(2)), seconds(90))
    assert HarbourOut.model_validate(harbour).model_dump(mode="json") == {
        "berths": [
            {"number": 1, "boat": "Argo", "since": "1970-01-01T00:00:00Z"},
            {"number": 2, "boat": None, "since": None},
        ],
        "opens_in": 90.0,
    }


def test_left_out_fields_and_those_of_the_base_are_not_declared_twice() -> None:
    class Numbered(Answer):
        number: str

    class Guest(answer_from(Berth, base=Numbered, but=("since",))):
        """A berth for guests."""

        flag: str

    assert list(properties(Guest)) == ["number", "boat", "flag"]
    assert properties(Guest)["number"]["type"] == "string"


def test_a_field_that_json_shows_in_another_form_has_to_be_declared_again() -> None:
    with pytest.raises(TypeError, match=r"berths, opens_in"):
        create_model("Incomplete", __base__=answer_from(Harbour), __module__=__name__)
