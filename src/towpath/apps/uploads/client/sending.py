"""Send one file to the server: its chunks in parallel, and again after failures.

The client saves nothing. The Idempotency-Key of the upload is computed from the request, which has
the checksum of the file. So the same command again, after Ctrl-C or a crash, finds the upload and
sends what is missing, and a file that is stored already is not sent again.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from towpath.apps.uploads.client.chunks import ChunksToSend
from towpath.apps.uploads.client.errors import (
    FileChanged,
    FileNotStored,
    UploadServerAway,
    UploadServerRefused,
    UploadServerUnreachable,
)
from towpath.apps.uploads.model import MOST_AT_ONCE
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum, RunningChecksum
from towpath.calls.answer import Next, created
from towpath.calls.own_server import ServerAddress, ServerConnection, ServerReply
from towpath.clock import steady

PATH = "/api/v1/uploads"
_READ = 1 << 20
_PATIENCE = 300.0
"""Seconds without any success after which the client gives up."""
_LONGEST_PAUSE = 5.0
_FIRST_PAUSE = 0.1
"""Seconds to wait after the first refusal for lack of room, doubled after each further one up to
the server's Retry-After. Asking again sends no body, and room is often free soon."""
_WORTH_ASKING = 1 << 20
"""Bytes: after a refusal, requests of this size and more are sent with `Expect: 100-continue`."""
_LOOK_EVERY, _LONGEST_LOOK = 2.0, 0.5
"""Seconds between two requests for the missing chunks, and for the status once all was sent."""
_AT_ONCE = 4
"""The default number of parallel requests."""
_MOST_RANGES = 100
"""Ranges of missing chunks that the server lists; there may be more."""
_QUICK = 0.5
"""Seconds: after a request that took less, the next one has twice as many small chunks."""
_ANEW = 20
"""How often a new upload is started if the last one was aborted or has expired."""
_GONE, _OPEN = ("ABORTED", "EXPIRED"), ("PENDING", "UPLOADING", "COMPLETING")


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is to be sent, and where it belongs."""

    at_once: int | None = None
    """None = 4."""
    chunk_size: int | None = None
    again: bool = False
    """Make a new document, even if the same file is stored already."""
    fields: dict[str, Any] = {}
    """drive, connector_id, path, …: as the server takes them."""


class Sent(NamedTuple):
    """A file that is stored on the server."""

    upload: dict[str, Any]
    checksum: Checksum
    resumed: int
    """Bytes that the server had before."""


class StopSignal:
    """Stops all threads of a file. *idle* are connections that no file uses now; *reached* is set
    once the command had a connection to the server.
    """

    def __init__(
        self,
        idle: list[ServerConnection] | None = None,
        reached: threading.Event | None = None,
    ) -> None:
        self._over = threading.Event()
        self.reached = reached or threading.Event()
        self._idle = [] if idle is None else idle
        self._connections: list[ServerConnection] = []

    def connection(self, address: ServerAddress) -> ServerConnection:
        try:
            found = self._idle.pop()
        except IndexError:
            found = ServerConnection(address)
        self._connections.append(found)
        return found

    def set(self) -> None:
        self._over.set()
        for connection in self._connections:
            connection.close()

    def leave(self) -> None:
        """After success, leave the connections to other files."""
        self._idle += self._connections
        self._connections = []

    @property
    def is_set(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: float) -> None:
        """Sleep. Raises InterruptedError once the file is to be stopped."""
        if self._over.wait(seconds):
            raise InterruptedError


def reach(address: ServerAddress, connection: ServerConnection | None = None) -> ServerConnection:
    """A connection to the server; *connection*, if it is given. Raises UploadServerUnreachable."""
    connection = connection or ServerConnection(address)
    try:
        connection.connect()
    except OSError as error:
        raise UploadServerUnreachable(address.url, error.strerror or str(error)) from error
    return connection


class Sending:
    """Sends one file.

    Raises UploadServerUnreachable, UploadServerAway, UploadServerRefused, FileNotStored,
    FileChanged.
    """

    def __init__(
        self, address: ServerAddress, file: Path, name: str, wish: SendOptions, stop: StopSignal
    ) -> None:
        self._file, self._name, self._wish, self._stop = file, name, wish, stop
        self._address = address
        self._connection = stop.connection(address)
        self._last_success = steady()
        self._size = file.stat().st_size

    @property
    def size(self) -> int:
        return self._size

    def run(self, sent: Callable[[int], None]) -> Sent:
        """Send the file and wait until it is stored. *sent* is called with numbers of bytes."""
        self._reach()
        checksum = self._checksum()
        upload, is_new = self._start(checksum)
        before, failed, looked, pause = 0, 0, 0.0, 0.05
        first = True
        while True:
            status = upload["status"]
            if status == "COMPLETED":
                self._check(upload)
                return Sent(upload, checksum, self._size if first else before)
            if status == "FAILED":
                failed += 1
                if failed > 1 or not first:
                    raise FileNotStored(f"{self._name}: {upload['error_message']}")
                upload = self._require_answer("POST", f"{self._path(upload)}/resume")
                continue
            # Chunks may be missing again: they have expired, or Redis was lost.
            look = first or steady() - looked > _LOOK_EVERY
            missing = list(self._missing(upload, is_new=first and is_new)) if look else []
            looked = steady() if look else looked
            if first:
                before = self._size - sum(self._length(upload, gap) for gap in missing)
                sent(before)
                first = False
            if missing:
                self._send(upload, missing, sent)
            asked = steady()
            upload = self._require_answer("GET", f"{self._path(upload)}?wait={_LOOK_EVERY}")
            if upload["status"] in _OPEN and steady() - asked < pause:  # the server did not wait
                self._stop.wait(pause)
                pause = min(pause * 1.5, _LONGEST_LOOK)

    def _reach(self) -> None:
        """Check that the server can be reached, before a large file is read for its checksum.

        A server that this command has reached before is not checked: requests wait for its return.
        Raises UploadServerUnreachable.
        """
        if self._stop.reached.is_set():
            return
        reach(self._address, self._connection)
        self._stop.reached.set()

    # ── the upload ───────────────────────────────────────────────────────────────────────

    def _checksum(self) -> Checksum:
        """The checksum of the whole file, which the server compares before COMPLETED.

        CRC-64/NVME if its library is installed, as the server can combine it from its parts;
        otherwise SHA-256, for which the server reads the object back.
        """
        try:
            running = RunningChecksum(Algorithm.CRC64NVME)
            running.update(b"")  # the first use imports the library
        except ModuleNotFoundError:
            running = RunningChecksum(Algorithm.SHA256)
        piece = memoryview(bytearray(_READ))
        with self._file.open("rb", buffering=0) as file:
            while size := file.readinto(piece):
                if self._stop.is_set:
                    raise InterruptedError
                running.update(piece[:size])
        return running.checksum

    def _start(self, checksum: Checksum) -> tuple[dict[str, Any], bool]:
        """Start the upload, a new one if it was aborted or has expired; and whether it is new."""
        body = {
            "name": self._name,
            "size": self._size,
            "checksum": {"algorithm": checksum.algorithm, "value": checksum.value},
            **({"chunk_size": self._wish.chunk_size} if self._wish.chunk_size else {}),
            **self._wish.fields,
        }
        request = msgspec.json.encode(body, order="deterministic")
        chance = random.SystemRandom().randbytes(8).hex() if self._wish.again else ""
        for time in range(_ANEW):
            words = request + chance.encode() + (str(time).encode() if time else b"")
            headers = {"Idempotency-Key": f"towpath-upload-{sha256(words).hexdigest()}"}
            answer = self._ask("POST", PATH, body, headers)
            if not answer.is_success:
                raise UploadServerRefused(self._name, answer)
            if answer.body["status"] not in _GONE:
                return answer.body, created(answer.status)
        raise FileNotStored(f"{self._name}: it was aborted {_ANEW} times")

    def _path(self, upload: dict[str, Any]) -> str:
        return f"{PATH}/{upload['upload_id']}"

    def _missing(self, upload: dict[str, Any], *, is_new: bool) -> Iterable[int]:
        if is_new:
            return range(upload["total_chunks"])
        answer = self._ask("GET", f"{self._path(upload)}/missing")
        if answer.is_success:
            return _numbers(_missing(answer))
        if _has_ended(answer) or answer.advice.next is Next.GONE:  # it ended meanwhile
            return []
        raise UploadServerRefused(self._name, answer)

    def _length(self, upload: dict[str, Any], number: int) -> int:
        size = upload["chunk_size"]
        return min(size, self._size - number * size)

    def _check(self, upload: dict[str, Any]) -> None:
        if upload["final_size"] != self._size:
            found = upload["final_size"]
            raise FileNotStored(f"{self._name}: the server stored {found} bytes, not {self._size}")
        if self._file.stat().st_size != self._size:
            raise FileChanged(self._name)

    # ── chunks ───────────────────────────────────────────────────────────────────────────

    def _send(
        self, upload: dict[str, Any], missing: Iterable[int], sent: Callable[[int], None]
    ) -> None:
        """Send chunks, several at once, until all are sent or the upload has ended."""
        queue = ChunksToSend(missing, upload["part_size"] // upload["chunk_size"])
        threads = min(self._wish.at_once or _AT_ONCE, len(queue))
        if threads == 1:
            self._send_some(upload, queue, sent, self._connection)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="towpath-upload") as pool:
            wires = [self._stop.connection(self._address) for _ in range(threads)]
            tasks = [pool.submit(self._send_some, upload, queue, sent, wire) for wire in wires]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                queue.end()
                self._stop.set()
                raise

    def _send_some(
        self,
        upload: dict[str, Any],
        queue: ChunksToSend,
        sent: Callable[[int], None],
        connection: ServerConnection,
    ) -> None:
        ask, refused, size = False, 0, upload["chunk_size"]
        most = first = max(_READ // size, 1)
        with self._file.open("rb", buffering=0) as file:
            while numbers := queue.next(most if size <= _READ else 1):
                path, began = self._chunk_path(upload, numbers), steady()
                length = sum(self._length(upload, number) for number in numbers)
                try:
                    answer = _put(connection, path, file, numbers[0] * size, length, ask=ask)
                except OSError as error:
                    connection.close()
                    self._pause(error)
                    most = first
                    here = self._find_received(upload, numbers, connection)
                    queue.done(here)
                    queue.back(numbers)
                    sent(sum(self._length(upload, number) for number in here))
                    continue
                quick = steady() - began < _QUICK
                most = min(most * 2, MOST_AT_ONCE) if quick else first
                ask = answer.is_later or (ask and length >= _WORTH_ASKING)
                refused = refused + 1 if _is_full(answer) else 0
                self._apply_answer(answer, numbers, queue, lambda: sent(length))  # noqa: B023 -- called now
                if answer.is_later:
                    self._pause(answer, refused)

    def _find_received(
        self, upload: dict[str, Any], numbers: range, connection: ServerConnection
    ) -> list[int]:
        """The chunks that count, of a request that had no answer."""
        if len(numbers) == 1:
            return []  # a request for the missing chunks costs as much as sending it again
        try:
            answer = connection.request("GET", f"{self._path(upload)}/missing")
        except OSError:
            connection.close()
            return []
        if not answer.is_success or len(_missing(answer)) >= _MOST_RANGES:
            return []
        missing = set(_numbers(_missing(answer)))
        return [number for number in numbers if number not in missing]

    def _chunk_path(self, upload: dict[str, Any], numbers: range) -> str:
        several = f"?count={len(numbers)}" if len(numbers) > 1 else ""
        return f"{self._path(upload)}/chunks/{numbers[0]}{several}"

    def _apply_answer(
        self, answer: ServerReply, numbers: range, queue: ChunksToSend, sent: Callable[[], None]
    ) -> None:
        if answer.is_success:
            self._last_success = steady()
            queue.done(numbers)
            sent()
        elif answer.is_later:
            # First the chunks that the server asks for: storing their parts frees room.
            queue.back(numbers)
            queue.first(_numbers(_missing(answer)))
            if _missing(answer):
                self._last_success = steady()
        elif _has_ended(answer):
            queue.end()
        else:
            queue.end()
            raise UploadServerRefused(self._name, answer)

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def _require_answer(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        answer = self._ask(method, path, body, headers)
        if not answer.is_success:
            raise UploadServerRefused(self._name, answer)
        return answer.body

    def _ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> ServerReply:
        """Returns the answer; repeats the request while it fails for now."""
        while True:
            try:
                answer = self._connection.request(method, path, body, headers)
            except OSError as error:
                self._connection.close()
                self._pause(error)
                continue
            if not answer.is_later:
                self._last_success = steady()
                return answer
            self._pause(answer)

    def _pause(self, why: ServerReply | OSError, refused: int = 0) -> None:
        """Wait before another attempt; *refused* = how often in a row there was no room.

        Raises UploadServerAway after `_PATIENCE` seconds without success.
        """
        if self._stop.is_set:
            raise InterruptedError
        if steady() - self._last_success > _PATIENCE:
            reason = why.body.get("detail", why.status) if isinstance(why, ServerReply) else why
            raise UploadServerAway(f"{self._name}: the server gave no useful answer: {reason}")
        after = why.after if isinstance(why, ServerReply) else 0.3
        if refused:
            after = min(after, _FIRST_PAUSE * 2 ** (refused - 1))
        self._stop.wait(min(after, _LONGEST_PAUSE) * random.uniform(0.7, 1.3))  # noqa: S311 -- so that not all come at once


def _put(
    connection: ServerConnection, path: str, file: IO[bytes], start: int, length: int, *, ask: bool
) -> ServerReply:
    """Send bytes of a file without copying them. Raises FileChanged, and as `put` does."""

    def send(to: socket.socket) -> None:
        if to.sendfile(file, start, length) != length:
            raise FileChanged(str(file.name))

    return connection.put(path, length, send, ask=ask)


def _has_ended(reply: ServerReply) -> bool:
    """Whether the upload has ended, or must be resumed first."""
    return reply.code in ("upload-ended", "upload-failed")


def _is_full(reply: ServerReply) -> bool:
    """Whether the server refused only for lack of room."""
    return reply.code in ("budget-full", "share-full")


def _missing(reply: ServerReply) -> list[tuple[int, int]]:
    """Ranges of chunks that are missing, or that should be sent first."""
    found: list[list[int]] = reply.body.get("missing", [])
    return [(first, last) for first, last in found]


def _numbers(ranges: Iterable[tuple[int, int]]) -> Iterable[int]:
    return (number for first, last in ranges for number in range(first, last + 1))
