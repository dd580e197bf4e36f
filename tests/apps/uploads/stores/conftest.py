"""An object store of each kind: both keep the same contract."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from towpath.apps.uploads.stores.options import StoreOptions, new_store
from towpath.apps.uploads.stores.port import ObjectStore
from towpath.embedded.objects import EmbeddedObjects

BUCKET = "tests"


def s3_options(objects: EmbeddedObjects, **other: Any) -> StoreOptions:
    """One bucket for all tests, as SeaweedFS preallocates files for each bucket."""
    given: dict[str, Any] = {
        "bucket": BUCKET,
        "prefix": f"{secrets.token_hex(6)}/",
        "endpoint": objects.url,
        "access_key": objects.access_key,
        "secret_key": objects.secret_key,
    }
    return StoreOptions(**(given | other))


@pytest.fixture(params=["directory", "s3"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOptions:
    if request.param == "directory":
        return StoreOptions(directory=tmp_path / "objects")
    return s3_options(request.getfixturevalue("running_objects"))


@pytest.fixture
async def store(options: StoreOptions) -> AsyncIterator[ObjectStore]:
    made = new_store(options)
    assert made is not None
    async with made as store:
        yield store
