"""S3 as object store, beyond the contract: lost answers, servers that refuse, freeze or stop."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs] -- it has none
    NoCredentialsError,
)
from msgspec.structs import replace

from tests.apps.uploads.stores.conftest import BUCKET, s3_options
from tests.apps.uploads.stores.s3_proxy import CallFault, S3Proxy, proxied
from tests.apps.uploads.stores.test_conformance import KEY, LARGE, content, two_parts, whole_of
from tests.waiting import eventually_async
from towpath.apps.uploads.stores import errors
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.options import StoreOptions, new_store
from towpath.apps.uploads.stores.port import Multipart, ObjectStore, Part
from towpath.apps.uploads.stores.s3.client import BodyStream
from towpath.apps.uploads.stores.s3.store import S3Store
from towpath.clock import seconds
from towpath.embedded.objects import EmbeddedObjects
from towpath.errors import RetryAdvice


async def listed(store: ObjectStore) -> list[Multipart]:
    return [found async for found in store.list_multiparts()]


MULTIPART = Multipart(KEY, "some-id", "u")
Call = Callable[[ObjectStore], Coroutine[Any, Any, object]]
CALLS: dict[str, Call] = {
    "check": lambda store: store.check(),
    "put": lambda store: store.put(KEY, LARGE),
    "begin": lambda store: store.begin_multipart(KEY, upload="u"),
    "part": lambda store: store.put_part(MULTIPART, 1, LARGE),
    "copy": lambda store: store.copy_part(MULTIPART, 1, KEY, start=0, length=1),
    "list": lambda store: store.list_parts(MULTIPART),
    "complete": lambda store: store.complete(MULTIPART, [Part(1, 1, "0" * 32)]),
    "abort": lambda store: store.abort(MULTIPART),
    "head": lambda store: store.head(KEY),
    "get": lambda store: content(store, KEY),
    "delete": lambda store: store.delete(KEY),
    "multiparts": listed,
}


@pytest.fixture
async def s3_proxy(running_objects: EmbeddedObjects) -> AsyncIterator[S3Proxy]:
    async with proxied(running_objects.url) as s3_proxy:
        yield s3_proxy


@pytest.fixture
def options(running_objects: EmbeddedObjects, s3_proxy: S3Proxy) -> StoreOptions:
    return s3_options(running_objects, endpoint=s3_proxy.url)


@pytest.fixture
def impatient(options: StoreOptions) -> StoreOptions:
    return hasty(options)


def hasty(options: StoreOptions) -> StoreOptions:
    """Options with short time limits, for calls that get no answer."""
    return replace(options, silence=seconds(1))


@contextmanager
def frozen(objects: EmbeddedObjects) -> Generator[None]:
    os.kill(objects.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(objects.pid, signal.SIGCONT)


class TestALostAnswer:
    @pytest.mark.parametrize("fault", [CallFault.LOST, CallFault.CUT, CallFault.SILENT])
    async def test_a_completion_whose_answer_was_lost_finds_its_object(
        self,
        s3_proxy: S3Proxy,
        options: StoreOptions,
        fault: CallFault,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The server has completed it: the existing object belongs to this upload."""
        if fault is CallFault.SILENT:
            monkeypatch.setattr("towpath.apps.uploads.stores.s3.client._LONGER", 0.1)
        async with S3Store(options) as store:
            multipart, parts = await two_parts(store)
            s3_proxy.rules.append(("POST uploadId", fault))
            made = await store.complete(multipart, parts, checksum=whole_of(parts))
            assert s3_proxy.count("POST") == 2, (
                "begun once, completed once: nothing was tried again"
            )
            assert made == await store.head(KEY)
            assert (await store.complete(multipart, parts)) == made

    @pytest.mark.parametrize("fault", [CallFault.LOST, CallFault.SILENT])
    async def test_a_lost_answer_to_a_part_is_a_temporary_error(
        self, s3_proxy: S3Proxy, options: StoreOptions, impatient: StoreOptions, fault: CallFault
    ) -> None:
        async with S3Store(options) as store, S3Store(impatient) as store_in_haste:
            multipart = await store.begin_multipart(KEY, upload="u")
            s3_proxy.rules.append(("PUT partNumber", fault))
            with pytest.raises(errors.StoreUnreachable) as trouble:
                await store_in_haste.put_part(multipart, 1, [b"bytes"])
            assert trouble.value.retry is RetryAdvice.SAFE
            s3_proxy.rules.clear()
            part = await store.put_part(multipart, 1, [b"bytes"])
            await store.complete(multipart, [part])
            assert await content(store, KEY) == b"bytes"

    @pytest.mark.parametrize("fault", [CallFault.LOST, CallFault.CUT])
    async def test_a_cut_download_raises_and_does_not_look_complete(
        self, s3_proxy: S3Proxy, options: StoreOptions, fault: CallFault
    ) -> None:
        async with S3Store(options) as store:
            await store.put(KEY, [b"0123456789" * 10])
            s3_proxy.rules.append(("GET", fault))
            with pytest.raises(errors.StoreUnreachable):
                await content(store, KEY)

    async def test_a_completion_does_not_take_the_object_of_another_upload(
        self, s3_proxy: S3Proxy, options: StoreOptions
    ) -> None:
        """The existing object belongs to another upload."""
        async with S3Store(options) as store:
            other = await store.begin_multipart(KEY, upload="other")
            await store.complete(other, [await store.put_part(other, 1, [b"other"])])
            multipart, parts = await two_parts(store)
            s3_proxy.refuse("POST uploadId", 500, "InternalError")
            with pytest.raises(errors.StoreUnreachable, match="InternalError"):
                await store.complete(multipart, parts)
            assert await content(store, KEY) == b"other"


class TestARefusalOfS3:
    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (503, "SlowDown", errors.StoreBusy),
            (429, "TooManyRequests", errors.StoreBusy),
            (500, "InternalError", errors.StoreUnreachable),
            (400, "RequestTimeout", errors.StoreUnreachable),
            (507, "InsufficientStorage", errors.StoreFull),
            (403, "AccessDenied", errors.StoreRefused),
            (403, "RequestTimeTooSkewed", errors.StoreRefused),
            (400, "ExpiredToken", errors.StoreRefused),
            (301, "PermanentRedirect", errors.StoreRefused),
            (404, "NoSuchBucket", errors.BucketNotFound),
            (400, "InvalidPart", errors.PartsDiffer),
            (400, "EntityTooSmall", errors.PartTooSmall),
            (400, "BadDigest", errors.ChecksumDiffers),
            (404, "NoSuchUpload", errors.MultipartNotFound),
        ],
    )
    async def test_every_refusal_of_s3_becomes_a_store_error(
        self,
        s3_proxy: S3Proxy,
        options: StoreOptions,
        status: int,
        code: str,
        kind: type[Exception],
    ) -> None:
        async with S3Store(options) as store:
            multipart, parts = await two_parts(store)
            s3_proxy.refuse("POST uploadId", status, code)
            with pytest.raises(kind) as refusal:
                await store.complete(multipart, parts)
            assert type(refusal.value) is kind

    async def test_slow_down_is_not_repeated_and_says_how_long_to_wait(
        self, s3_proxy: S3Proxy, options: StoreOptions
    ) -> None:
        async with S3Store(options) as store:
            s3_proxy.refuse("PUT", 503, "SlowDown", Retry_After="7")
            with pytest.raises(errors.StoreBusy) as refusal:
                await store.put(KEY, LARGE)
            assert refusal.value.after == seconds(7)
            assert s3_proxy.count("PUT") == 1
            s3_proxy.rules.clear()
            s3_proxy.refuse("PUT", 503, "SlowDown", Retry_After="Fri, 01 Jan 2038 00:00:00 GMT")
            with pytest.raises(errors.StoreBusy) as refusal:
                await store.put(KEY, LARGE)
            assert refusal.value.after is None

    @pytest.mark.parametrize("name", CALLS)
    async def test_wrong_credentials_are_a_permanent_error(
        self, running_objects: EmbeddedObjects, name: str
    ) -> None:
        wrong = "wrong-secret-of-nobody"
        async with S3Store(s3_options(running_objects, secret_key=wrong)) as store:
            with pytest.raises(errors.StoreRefused) as refusal:
                await CALLS[name](store)
            assert refusal.value.retry is RetryAdvice.NEVER
            assert wrong not in str(refusal.value)

    async def test_the_error_of_a_missing_bucket_names_the_bucket_and_the_setting(
        self, running_objects: EmbeddedObjects
    ) -> None:
        async with S3Store(s3_options(running_objects, bucket="nowhere")) as store:
            with pytest.raises(errors.BucketNotFound) as refusal:
                await store.check()
            assert refusal.value.bucket == "nowhere"
            assert "uploads.bucket" in refusal.value.remedy
        made = s3_options(running_objects, bucket="nowhere-yet", make_bucket=True)
        async with S3Store(made) as store:
            await store.check()
            await store.check()

    @pytest.mark.parametrize(("region", "named"), [("us-east-1", 0), ("eu-west-1", 1)])
    async def test_a_bucket_is_created_in_its_region_without_a_name_for_us_east_1(
        self, options: StoreOptions, s3_proxy: S3Proxy, region: str, named: int
    ) -> None:
        made = replace(options, bucket=f"made-in-{region}", make_bucket=True, region=region)
        async with S3Store(made) as store:
            await store.check()
        put = next(at for at, line in enumerate(s3_proxy.calls) if line.startswith("PUT"))
        assert s3_proxy.bodies[put].count(region.encode()) == named


class TestAnS3Server:
    @pytest.mark.parametrize("name", CALLS)
    async def test_an_unreachable_server_is_a_temporary_error(
        self, running_objects: EmbeddedObjects, name: str
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        away = s3_options(running_objects, endpoint=f"http://127.0.0.1:{port}")
        async with S3Store(away) as store:
            with pytest.raises(errors.StoreUnreachable):
                await CALLS[name](store)

    async def test_calls_to_a_frozen_server_time_out_and_leave_no_connection(
        self, running_objects: EmbeddedObjects
    ) -> None:
        """Also while a body is on its way that it does not read. No connection stays behind: one
        that is closed stays open while it has bytes to send, which here would be for ever.
        """
        options, port = s3_options(running_objects), urlsplit(running_objects.url).port
        async with S3Store(options) as store, S3Store(hasty(options)) as impatient:
            await store.put(KEY, [b"before"])
            before = connections_to(port)
            with frozen(running_objects):
                for name in ("put", "part", "head", "get"):
                    with pytest.raises(errors.StoreUnreachable):
                        await CALLS[name](impatient)
                with pytest.raises(errors.StoreUnreachable) as refusal:
                    await impatient.put("large", [*LARGE, *LARGE, *LARGE, *LARGE])
                assert isinstance(refusal.value.__cause__, TimeoutError)

                async def are_gone() -> bool:
                    return connections_to(port) <= before

                await eventually_async(are_gone)
            assert await content(store, KEY) == b"before"
            await store.put(KEY, [b"after"])


def connections_to(port: int | None) -> int:
    """The number of connections of this process to *port*."""
    return sum(_leads_to(port, int(fd.name)) for fd in Path("/proc/self/fd").iterdir())


def _leads_to(port: int | None, fd: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        with socket.socket(fileno=os.dup(fd)) as found:
            return found.family == socket.AF_INET and found.getpeername()[1] == port
    except OSError:  # not connected, or closed meanwhile
        return False


class TestTheList:
    async def test_the_list_of_parts_has_all_pages(
        self, options: StoreOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This holds for a server that lists replaced parts, too, and a page may end in the middle
        of them.
        """
        monkeypatch.setattr("towpath.apps.uploads.stores.s3.store._PAGE", 3)
        async with S3Store(options) as store:
            multipart = await store.begin_multipart(KEY, upload="u")
            sent = [await store.put_part(multipart, n, [b"%d" % n]) for n in range(1, 9)]
            for n in (3, 5):
                await store.put_part(multipart, n, [b"another"])
            found = await store.list_parts(multipart)
            assert found == [sent[n - 1]._replace(checksum=None) for n in (1, 2, 4, 6, 7, 8)]
            again = await store.put_part(multipart, 3, [b"3"])
            await store.complete(multipart, [again])
            assert await content(store, KEY) == b"3"


class TestAServerWithoutChecksums:
    async def test_a_server_without_checksums_gets_an_md5(
        self, running_objects: EmbeddedObjects
    ) -> None:
        async with S3Store(s3_options(running_objects, checksums=False)) as store:
            multipart, parts = await two_parts(store)
            made = await store.complete(multipart, parts, checksum=whole_of(parts))
            assert made.checksum is None
            assert await content(store, KEY) == b"".join(LARGE) + b"the end"
            wrong = Checksum.of(Algorithm.SHA256, [b"other"])
            with pytest.raises(errors.ChecksumDiffers):
                await store.put(KEY, [b"bytes"], checksum=wrong)

    @pytest.mark.parametrize("how", ["crc", "md5"])
    async def test_a_body_that_was_damaged_on_the_way_is_refused(
        self, s3_proxy: S3Proxy, running_objects: EmbeddedObjects, how: str
    ) -> None:
        options = s3_options(running_objects, endpoint=s3_proxy.url, checksums=how == "crc")
        async with S3Store(options) as store:
            multipart = await store.begin_multipart(KEY, upload="u")
            s3_proxy.rules.append(("PUT", CallFault.DAMAGED))
            with pytest.raises(errors.ChecksumDiffers):
                await store.put_part(multipart, 1, [b"bytes"])
            with pytest.raises(errors.ChecksumDiffers):
                await store.put(KEY, [b"bytes"])
            assert await store.list_parts(multipart) == []


class TestTheClient:
    async def test_the_client_sends_pieces_without_copying_them(self) -> None:
        piece = bytes(1024 * 1024)
        sent: list[int] = []
        body = BodyStream([piece, b"end"], lambda: sent.append(1))
        views = [view async for view in body]
        assert len(body) == len(piece) + 3
        assert [memoryview(view).obj is piece for view in views] == [True] * 4 + [False]
        assert len(sent) == 5

    async def test_the_client_calls_the_endpoint_of_the_options(
        self, running_objects: EmbeddedObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        async with S3Store(s3_options(running_objects)) as store:
            await store.put(KEY, [b"there"])

    async def test_the_client_finds_credentials_in_the_environment(
        self, running_objects: EmbeddedObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = StoreOptions(bucket=BUCKET, endpoint=running_objects.url, prefix="chain/")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        async with S3Store(options) as store:
            with pytest.raises(errors.StoreRefused) as refusal:
                await store.head(KEY)
            assert isinstance(refusal.value.__cause__, NoCredentialsError)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", running_objects.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", running_objects.secret_key)
        async with S3Store(options) as store:
            await store.put(KEY, [b"there"])

    async def test_a_closed_client_sends_no_request(
        self, options: StoreOptions, s3_proxy: S3Proxy
    ) -> None:
        async with S3Store(options) as store:
            pass
        with pytest.raises(errors.StoreUnreachable):
            await store.head(KEY)
        assert s3_proxy.calls == []

    def test_a_missing_library_names_the_extra(
        self, options: StoreOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in sys.modules if "uploads.stores.s3" in name]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "aiobotocore", None)
        with pytest.raises(errors.StoreNotInstalled) as refusal:
            new_store(options)
        assert "[s3]" in refusal.value.remedy
