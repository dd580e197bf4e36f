"""An object store in a directory of this machine, which `towpath up` uses.

It has the same contract as the S3 store, and computes ETags in the same way. All of it runs in
threads of its own, so that a slow disk delays nothing else.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.errors import (
    RangeBeyondEnd,
    StoreFull,
    StoreRefused,
    StoreUnreachable,
)
from towpath.apps.uploads.stores.folders import Begun, Folders, Name
from towpath.apps.uploads.stores.options import BUCKET, BUCKET_RULE, StoreOptions
from towpath.apps.uploads.stores.port import (
    BINARY,
    NONE,
    Body,
    Multipart,
    Object,
    Part,
    combining,
    content_type_of,
    object_key,
    part_number,
    read_back,
    spelled,
)
from towpath.clock import wall_ms
from towpath.errors import InvalidName, InvalidOption

_Answer = TypeVar("_Answer")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


class DirectoryStore:
    """Objects below `options.directory`, which is made if missing. Implements `ObjectStore`."""

    def __init__(
        self, options: StoreOptions, *, bucket: str = "", threads: _Threads | None = None
    ) -> None:
        if options.directory is None:
            raise InvalidOption("directory", "none", rule="a directory is required")
        if bucket and not BUCKET.fullmatch(bucket):
            raise InvalidName("bucket", bucket, rule=BUCKET_RULE)
        self._options, self._root = options, options.directory
        self._prefix = options.prefix
        self._folders = Folders(self._root / "buckets" / bucket if bucket else self._root)
        self._threads = _Threads(self._root, options.connections) if threads is None else threads

    async def __aenter__(self) -> Self:
        self._threads.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._threads.stop()

    def at(self, bucket: str) -> DirectoryStore:
        if not bucket:
            return self
        return DirectoryStore(self._options, bucket=bucket, threads=self._threads)

    async def check(self) -> None:
        await self._run(self._folders.make)

    async def put(
        self,
        key: str,
        body: Body,
        *,
        checksum: Checksum | None = None,
        metadata: Mapping[str, str] = NONE,
        content_type: str = BINARY,
    ) -> Object:
        kept = Algorithm.CRC64NVME
        if checksum is not None and checksum.algorithm.combines:
            kept = checksum.algorithm
        begun = self._parameters(key, "", kept, spelled(metadata), content_type)
        return self._object(await self._write(self._folders.put, begun, body, checksum))

    async def begin_multipart(
        self,
        key: str,
        *,
        upload: str,
        algorithm: Algorithm = Algorithm.CRC64NVME,
        metadata: Mapping[str, str] = NONE,
        content_type: str = BINARY,
    ) -> Multipart:
        own = spelled(metadata, upload=upload)
        begun = self._parameters(key, upload, combining(algorithm), own, content_type)
        made = await self._write(self._folders.begin, begun)
        return Multipart(key, made, upload, algorithm)

    async def put_part(self, multipart: Multipart, number: int, body: Body) -> Part:
        part_number(number)
        return await self._run(self._folders.put_part, self._with_prefix(multipart), number, body)

    async def copy_part(
        self, multipart: Multipart, number: int, source: str, *, start: int, length: int
    ) -> Part:
        part_number(number)
        return await self._run(
            self._copy, self._with_prefix(multipart), number, self._key(source), start, length
        )

    def _copy(self, multipart: Multipart, number: int, key: str, start: int, length: int) -> Part:
        name = self._folders.find(key)
        if length < 1 or not 0 <= start <= name.size - length:
            raise RangeBeyondEnd(key, start + length)
        pieces = self._folders.pieces(name, start, start + length)
        return self._folders.put_part(multipart, number, pieces)

    async def list_parts(self, multipart: Multipart) -> list[Part]:
        return await self._run(self._folders.list_parts, self._with_prefix(multipart))

    async def complete(
        self, multipart: Multipart, parts: Sequence[Part], *, checksum: Checksum | None = None
    ) -> Object:
        own = self._with_prefix(multipart)
        return self._object(await self._run(self._folders.complete, own, parts, checksum))

    async def abort(self, multipart: Multipart) -> None:
        await self._run(self._folders.abort, self._with_prefix(multipart))

    async def head(self, key: str) -> Object:
        return self._object(await self._run(self._folders.find, self._key(key)))

    @asynccontextmanager
    async def get(
        self, key: str, *, start: int = 0, length: int | None = None
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        name = await self._run(self._folders.find, self._key(key))
        if start < 0 or (start >= name.size and (start or length is not None)):
            raise RangeBeyondEnd(key, start)
        end = name.size if length is None else min(name.size, start + length)
        yield self._pieces(self._folders.pieces(name, start, end))

    async def _pieces(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        def following() -> bytes:
            return next(pieces, b"")

        while piece := await self._run(following):
            yield piece

    async def delete(self, key: str) -> None:
        await self._run(self._folders.delete, self._key(key))

    async def list_multiparts(self, key: str | None = None) -> AsyncIterator[Multipart]:
        among = self._folders.unfinished if key is None else self._folders.begun
        for found in await self._write(lambda: list(among())):
            if found.key == self._prefix + key if key else found.key.startswith(self._prefix):
                yield found._replace(key=found.key.removeprefix(self._prefix))

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def _parameters(
        self,
        key: str,
        upload: str,
        algorithm: Algorithm,
        metadata: Mapping[str, str],
        content_type: str,
    ) -> Begun:
        kind = content_type_of(content_type)
        return Begun(self._key(key), upload, algorithm, read_back(metadata), kind, wall_ms())

    def _key(self, key: str) -> str:
        return object_key(self._prefix + object_key(key))

    def _with_prefix(self, multipart: Multipart) -> Multipart:
        """*multipart* with the whole key. Raises InvalidName if its id is not of this store."""
        if not multipart.id.isalnum() or len(multipart.id) > 64:
            raise InvalidName("multipart upload", multipart.id, rule="must be an id of this store")
        return multipart._replace(key=self._key(multipart.key))

    def _object(self, name: Name) -> Object:
        key, checksum = name.key.removeprefix(self._prefix), Checksum(name.algorithm, name.value)
        return Object(key, name.size, name.etag, checksum, name.metadata, name.content_type)

    async def _write(self, work: Callable[..., _Answer], *given: object) -> _Answer:
        """Run *work* as `_run` does, after making the folders if they are missing."""
        return await self._run(partial(self._make_folders_and_run, work), *given)

    def _make_folders_and_run(self, work: Callable[..., _Answer], *given: object) -> _Answer:
        self._folders.make()
        return work(*given)

    async def _run(self, work: Callable[..., _Answer], *given: object) -> _Answer:
        return await self._threads.run(partial(work, *given))


class _Threads:
    """The threads of a store; they turn an OSError into a StoreError."""

    def __init__(self, root: Path, most: int) -> None:
        self._root, self._most = root, most
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="towpath-store")

    async def stop(self) -> None:
        """Stop after the calls that are under way."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.shutdown)

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        if self._pool is None:
            raise StoreUnreachable("its directory is not open")
        with _store_errors(self._root):
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)


@contextmanager
def _store_errors(root: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{root}: {error.strerror or error}"
        if error.errno in _FULL:
            raise StoreFull(reason) from error
        if error.errno in _FORBIDDEN:
            raise StoreRefused(reason) from error
        raise StoreUnreachable(reason) from error
