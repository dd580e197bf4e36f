"""Objects and their parts as files and folders; everything here blocks, and raises OSError.

    open/<id>/      an object in parts that was begun: `begun~` has its key and its upload
    whole/<id>/     the same, closed: no part can be added
    names/<key>~    an object: its folder in whole/, and the files with its bytes

An object's bytes stay in the files that its parts were written to: completing it copies nothing,
needs no space, and is one rename. A folder of whole/ that no name points to was left by a crash, or
is an object that was replaced: `unfinished` finds it, with all that is open. Every file is synced
and then renamed into place. Keys have no `~`. What begins with a dot is being written or deleted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from towpath.apps.uploads.stores.checksums import (
    Algorithm,
    Checksum,
    Piece,
    RunningChecksum,
    combined,
)
from towpath.apps.uploads.stores.errors import (
    ChecksumDiffers,
    MultipartNotFound,
    ObjectNotFound,
    PartsDiffer,
    StoreDamaged,
)
from towpath.apps.uploads.stores.port import PIECE, Body, Multipart, Part, check_parts
from towpath.clock import instant, wall_ms
from towpath.files import durable_file, sync_directory, write_all

_LEFT_MS = 3_600_000
"""After an hour, what begins with a dot was left by a crash."""
_BEGUN = "begun~"


class Begun(msgspec.Struct, frozen=True):
    """The parameters of an object in parts."""

    key: str
    upload: str
    algorithm: Algorithm
    metadata: Mapping[str, str]
    content_type: str
    at: int


class _File(msgspec.Struct, frozen=True):
    """The bytes of a part, and their file in the folder."""

    file: str
    size: int
    etag: str
    algorithm: Algorithm
    value: str

    def part(self, number: int) -> Part:
        return Part(number, self.size, self.etag, self.checksum)

    @property
    def checksum(self) -> Checksum:
        return Checksum(self.algorithm, self.value)


class Name(msgspec.Struct, frozen=True):
    """An object: where its bytes are, and its metadata."""

    key: str
    folder: str
    size: int
    etag: str
    algorithm: Algorithm
    value: str
    metadata: Mapping[str, str]
    content_type: str
    files: Sequence[tuple[str, int]]
    """The names and sizes of its files, in order."""


_Kept = TypeVar("_Kept", bound=msgspec.Struct)


class Folders:
    """The folders below *root*. Several processes may use them at once."""

    def __init__(self, root: Path) -> None:
        self._open, self._whole, self._names = (root / name for name in ("open", "whole", "names"))

    def make(self) -> None:
        """Make the folders that are missing."""
        for folder in (self._open, self._whole, self._names):
            _make_folder(folder)
            if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    # ── objects ──────────────────────────────────────────────────────────────────────────

    def put(self, begun: Begun, body: Body, checksum: Checksum | None) -> Name:
        """An object of *body*, whole. Raises ChecksumDiffers."""
        id_, on_its_way = self._begin_hidden(begun)
        try:
            file = _write_pieces(on_its_way, 1, body, begun.algorithm)
            _require_equal(checksum, file, body, begun.key)
            _move(on_its_way, self._whole / id_)
        except BaseException:
            shutil.rmtree(on_its_way, ignore_errors=True)
            raise
        return self._point_name(id_, begun, [file], file.etag)

    def find(self, key: str) -> Name:
        """Raises ObjectNotFound, StoreDamaged."""
        found = self._read_name(key)
        if found is None:
            raise ObjectNotFound(key)
        return found

    def delete(self, key: str) -> None:
        if (found := self._read_name(key)) is not None:
            with suppress(FileNotFoundError):
                self._path(key).unlink()
            sync_directory(self._path(key).parent)
            self._remove(self._whole / found.folder)

    def pieces(self, name: Name, start: int, end: int) -> Iterator[bytes]:
        """The bytes from *start* up to *end*, at most 1 MiB at a time."""
        at = 0
        for file, size in name.files:
            if at < end and start < at + size:
                path = self._whole / name.folder / file
                yield from _read(path, max(start - at, 0), min(end - at, size))
            at += size

    # ── parts ────────────────────────────────────────────────────────────────────────────

    def begin(self, begun: Begun) -> str:
        id_, on_its_way = self._begin_hidden(begun)
        _move(on_its_way, self._open / id_)
        return id_

    def put_part(self, multipart: Multipart, number: int, body: Iterable[Piece]) -> Part:
        """Raises MultipartNotFound, also if it was closed while *body* was written."""
        folder = self._open / multipart.id
        begun = self._read_begun(folder, multipart)
        about = folder / f"{number:05}~"
        try:
            before = _read_value(about, _File)
            file = _write_pieces(folder, number, body, begun.algorithm)
            _write_value(about, file)
            if before is not None and before.file != file.file:
                (folder / before.file).unlink(missing_ok=True)
        except FileNotFoundError as error:
            if folder.exists():
                raise
            raise MultipartNotFound(multipart.key, multipart.id) from error
        return file.part(number)

    def list_parts(self, multipart: Multipart) -> list[Part]:
        folder = self._open / multipart.id
        self._read_begun(folder, multipart)
        return [file.part(number) for number, file in _parts_in(folder).items()]

    def complete(
        self, multipart: Multipart, parts: Sequence[Part], checksum: Checksum | None
    ) -> Name:
        """Close the folder, then point the name to it. After a crash in between, repeat it."""
        etag = _etag_of(parts)
        done = self._read_name(multipart.key)
        if done is not None and done.folder == multipart.id and done.etag == etag:
            return done
        folder = self._close(multipart, parts)
        try:
            found = _parts_in(folder)
            check_parts(multipart, parts, _versions(found))
            files = [found[part.number] for part in parts]
            _require_whole(checksum, files, multipart.key)
        except BaseException:
            _move(folder, self._open / multipart.id)
            raise
        begun = self._read_begun(folder, multipart)
        _remove_all_but(folder, {_BEGUN, *(file.file for file in files), *_part_names(parts)})
        return self._point_name(multipart.id, begun, files, etag)

    def abort(self, multipart: Multipart) -> None:
        self._remove(self._open / multipart.id)
        done = self._read_name(multipart.key)
        if done is None or done.folder != multipart.id:
            self._remove(self._whole / multipart.id)

    def begun(self) -> Iterator[Multipart]:
        """Everything that is open. Files that a crash left are deleted."""
        for folder in sorted(self._open.iterdir()):
            if folder.name.startswith("."):
                _remove_if_left(folder)
            elif begun := _read_value(folder / _BEGUN, Begun):
                yield _multipart_of(folder, begun)

    def unfinished(self) -> Iterator[Multipart]:
        """Everything that is open, and closed folders that no name points to."""
        yield from self.begun()
        for folder in sorted(self._whole.iterdir()):
            if begun := _read_value(folder / _BEGUN, Begun):
                done = self._read_name(begun.key)
                if done is None or done.folder != folder.name:
                    yield _multipart_of(folder, begun)

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def _begin_hidden(self, begun: Begun) -> tuple[str, Path]:
        id_ = secrets.token_hex(16)
        folder = self._open / f".{id_}"
        folder.mkdir(mode=0o700)
        _write_value(folder / _BEGUN, begun)
        return id_, folder

    def _read_begun(self, folder: Path, multipart: Multipart) -> Begun:
        found = _read_value(folder / _BEGUN, Begun)
        if found is None or found.key != multipart.key:
            raise MultipartNotFound(multipart.key, multipart.id)
        return found

    def _close(self, multipart: Multipart, parts: Sequence[Part]) -> Path:
        """Close the folder of *multipart*, so that no part can be added; returns its new path."""
        still, closed = self._open / multipart.id, self._whole / multipart.id
        try:
            self._read_begun(still, multipart)
            check_parts(multipart, parts, _versions(_parts_in(still)))
        except (MultipartNotFound, PartsDiffer, FileNotFoundError):
            if still.exists():  # otherwise it was closed meanwhile, and is checked below
                raise
        with suppress(FileNotFoundError):  # another process has closed it
            _move(still, closed)
        self._read_begun(closed, multipart)
        return closed

    def _point_name(self, id_: str, begun: Begun, files: Sequence[_File], etag: str) -> Name:
        """Point the object's name to its folder, which makes the object visible."""
        before = self._read_name(begun.key)
        checksum = combined((file.checksum, file.size) for file in files)
        name = Name(
            key=begun.key,
            folder=id_,
            size=sum(file.size for file in files),
            etag=etag,
            algorithm=checksum.algorithm,
            value=checksum.value,
            metadata=begun.metadata,
            content_type=begun.content_type,
            files=[(file.file, file.size) for file in files],
        )
        path, on_its_way = self._path(begun.key), self._open / f".{secrets.token_hex(8)}~"
        _make_folder(path.parent)
        _write_value(on_its_way, name)
        _move(on_its_way, path)
        if before is not None and before.folder != id_:
            self._remove(self._whole / before.folder)
        return name

    def _read_name(self, key: str) -> Name | None:
        return _read_value(self._path(key), Name)

    def _path(self, key: str) -> Path:
        return self._names / f"{key}~"

    def _remove(self, folder: Path) -> None:
        """Rename the folder before deleting it: others see it with all of its files, or not."""
        gone = self._open / f".{folder.name}.{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            _move(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _multipart_of(folder: Path, begun: Begun) -> Multipart:
    return Multipart(begun.key, folder.name, begun.upload, begun.algorithm, instant(begun.at))


def _parts_in(folder: Path) -> dict[int, _File]:
    """The parts in a folder, by number."""
    found = {
        int(path.name[:-1]): _read_value(path, _File) for path in sorted(folder.glob("[0-9]*~"))
    }
    return {number: file for number, file in found.items() if file is not None}


def _versions(found: Mapping[int, _File]) -> dict[int, set[tuple[str, int]]]:
    return {number: {(file.etag, file.size)} for number, file in found.items()}


def _part_names(parts: Sequence[Part]) -> set[str]:
    return {f"{part.number:05}~" for part in parts}


def _etag_of(parts: Sequence[Part]) -> str:
    """The ETag as S3 computes it: the MD5 of the parts' MD5s, and the number of parts."""
    try:
        joined = b"".join(bytes.fromhex(part.etag) for part in parts)
    except ValueError:  # an ETag that is no MD5
        return ""
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"


def _require_equal(checksum: Checksum | None, file: _File, body: Body, key: str) -> None:
    """Raises ChecksumDiffers if *body*, which is in *file*, does not match *checksum*."""
    if checksum is None or checksum == file.checksum:
        return
    same = checksum.algorithm is file.algorithm
    if same or checksum != Checksum.of(checksum.algorithm, body):
        raise ChecksumDiffers(key)


def _require_whole(checksum: Checksum | None, files: Sequence[_File], key: str) -> None:
    """Raises ChecksumDiffers if the checksums of *files* combine to another one than *checksum*.

    Checksums of another algorithm can't be compared, and pass.
    """
    kinds = {file.algorithm for file in files}
    if checksum is None or kinds != {checksum.algorithm}:
        return
    if combined((file.checksum, file.size) for file in files) != checksum:
        raise ChecksumDiffers(key)


# ── files ────────────────────────────────────────────────────────────────────────────────


def _write_pieces(
    folder: Path, number: int, pieces: Iterable[Piece], algorithm: Algorithm
) -> _File:
    """Write *pieces* to a file of their own, and sync it."""
    path = folder / f"{number:05}.{secrets.token_hex(4)}"
    size, checksum = 0, RunningChecksum(algorithm)
    etag = hashlib.md5(usedforsecurity=False)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            write_all(descriptor, piece)
            size += len(piece)
            etag.update(piece)
            checksum.update(piece)
        os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return _File(path.name, size, etag.hexdigest(), *checksum.checksum)


def _write_value(path: Path, value: msgspec.Struct) -> None:
    durable_file(path, msgspec.json.encode(value))


def _read_value(path: Path, kind: type[_Kept]) -> _Kept | None:
    """Decode the file *path*; None if there is no such file. Raises StoreDamaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(path) from error


def _read(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < end:
            piece = file.read(min(PIECE, end - start))
            if not piece:
                raise StoreDamaged(path)
            start += len(piece)
            yield piece


def _make_folder(folder: Path) -> None:
    """Make *folder* and its missing parents, and sync them."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    sync_directory(folder.parent)


def _move(path: Path, to: Path) -> None:
    path.rename(to)
    sync_directory(to.parent)
    sync_directory(path.parent)


def _remove_all_but(folder: Path, named: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in named:
            path.unlink(missing_ok=True)


def _remove_if_left(path: Path) -> None:
    with suppress(FileNotFoundError):
        if wall_ms() - path.stat().st_mtime * 1000 <= _LEFT_MS:
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
