"""The digest of a payload type is the same in every process, and differs between types."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, Field

from towpath.worker.handler import Handler


class Letter(msgspec.Struct):
    to: str
    copies: int = 1


class LongerLetter(msgspec.Struct, rename={"body": "text"}):
    to: str
    body: str


class Parcel(BaseModel):
    """What a courier takes."""

    to: str
    tags: set[str] = {"large", "fragile", "green", "new", "old", "red"}
    kind: Literal["box", "bag"] = "box"


class OtherParcel(BaseModel):
    to: str
    tags: set[str] = Field(default_factory=set[str])
    kind: Literal["box"] = "box"


@dataclass
class Box:
    letters: list[Letter] = field(default_factory=list[Letter])
    size: Annotated[int, msgspec.Meta(ge=1)] | str = 1


KINDS: list[Any] = [
    Letter, LongerLetter, Parcel, OtherParcel, Box, int, str, int | None, list[int],
    dict[str, Letter], list[Parcel],
]  # fmt: skip


def handler(kind: Any) -> Handler[Any, Any, Any]:
    async def take(item: Any) -> None: ...

    take.__annotations__["item"] = kind
    return Handler("mails", take)


def digests() -> list[str]:
    return [handler(kind).digest for kind in KINDS]


def test_different_types_have_different_digests() -> None:
    assert len(set(digests())) == len(KINDS)
    assert "" not in digests()


@pytest.mark.parametrize("kind", [Any, bytes], ids=["any", "bytes"])
def test_a_type_that_accepts_anything_has_no_digest(kind: Any) -> None:
    assert handler(kind).digest == ""


def test_a_handler_without_a_payload_has_no_digest() -> None:
    async def count() -> None: ...

    assert Handler[Any, Any, Any]("mails", count).digest == ""


def test_an_optional_payload_has_another_digest() -> None:
    async def take(item: int = 1) -> None: ...

    assert Handler[Any, Any, Any]("mails", take).digest not in ("", handler(int).digest)


def test_descriptions_do_not_change_the_digest() -> None:
    def described(text: str) -> type[msgspec.Struct]:
        return msgspec.defstruct("Letter", [("to", str)], namespace={"__doc__": text})

    assert handler(described("a")).digest == handler(described("b")).digest


def test_another_process_computes_the_same_digests() -> None:
    code = "from tests.worker.test_digests import digests; print(*digests())"
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stdout.split() == digests()
