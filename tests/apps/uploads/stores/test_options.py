"""Which object store the options name, and which one `towpath up` starts."""

from pathlib import Path
from typing import Any

import pytest

from towpath.apps.application import BundledObjectStore, BundledServices
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.stores.options import StoreOptions, new_store, with_bundled
from towpath.apps.uploads.stores.s3.store import S3Store
from towpath.errors import InvalidOption

KEYS: dict[str, Any] = {"access_key": "a", "secret_key": "s"}
OBJECTS = BundledObjectStore("http://127.0.0.1:1", "access", "secret")


class TestAStore:
    def test_the_options_name_a_bucket_or_a_directory(self, tmp_path: Path) -> None:
        assert isinstance(new_store(StoreOptions(bucket="files")), S3Store)
        assert isinstance(new_store(StoreOptions(directory=tmp_path)), DirectoryStore)
        assert new_store(StoreOptions()) is None

    @pytest.mark.parametrize(
        "given",
        [
            {"bucket": "A"},
            {"bucket": "../x"},
            {"bucket": "files", "directory": Path("x")},
            {"access_key": "a"},
            {"secret_key": "s"},
            {"session_token": "t"},
            {"prefix": "/"},
            {"prefix": "../"},
            {"endpoint": "ftp://host"},
            {"endpoint": "host:9000"},
            {"endpoint": "http://user:word@host"},
            {"endpoint": "http://host?x"},
            {"connections": 0},
        ],
    )
    def test_impossible_options_are_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption) as refusal:
            StoreOptions(**given)
        assert "word" not in str(refusal.value)

    def test_the_options_show_no_secret(self) -> None:
        shown = repr(StoreOptions(bucket="files", **KEYS, session_token="token"))  # noqa: S106 -- of nobody
        assert "token'" not in shown
        assert "'s'" not in shown


class TestUp:
    def test_up_keeps_uploads_in_its_directory(self, tmp_path: Path) -> None:
        assert (
            with_bundled(StoreOptions(), BundledServices(tmp_path)).directory
            == tmp_path / "uploads"
        )

    def test_up_keeps_uploads_in_its_object_store_if_it_has_one(self, tmp_path: Path) -> None:
        found = with_bundled(StoreOptions(), BundledServices(tmp_path, OBJECTS))
        assert (found.bucket, found.endpoint, found.make_bucket) == ("uploads", OBJECTS.url, True)
        assert (found.access_key, found.secret_key) == OBJECTS[1:]
        assert found.directory is None

    def test_up_does_not_change_given_options(self, tmp_path: Path) -> None:
        for said in (StoreOptions(bucket="files"), StoreOptions(directory=Path("x"))):
            assert with_bundled(said, BundledServices(tmp_path, OBJECTS)) == said
