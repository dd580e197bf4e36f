"""Names in paths. A slash inside a name is written %2F, so paths are matched as they were sent."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path
from pydantic import BeforeValidator, Field
from starlette.types import Scope

PREFIX = "/api/v1/"
WEBHOOKS = f"{PREFIX}webhooks/"
"""Where forges post to. They have no key: what they send is signed, and looked at only then."""


def keep_as_sent(scope: Scope) -> None:
    """Match the path undecoded: `jobs/a%2Fexplain` is a job's name, `jobs/a/explain` a question."""
    if scope["path"].startswith(PREFIX) and "raw_path" in scope:
        scope["path"] = scope["raw_path"].decode("ascii", "replace")


def decoded(name: str) -> str:
    """A name as it was meant. Raises ValueError for what is no UTF-8."""
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
