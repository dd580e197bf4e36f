"""`towpath upload`: files to a server, with a bar, a rate and the remaining time."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from towpath.apps.uploads.client.errors import FileUnreadable, NotAFile, UploadServerUnreachable
from towpath.clock import steady
from towpath.console.exits import exit_code
from towpath.console.verb import Session, verb
from towpath.errors import InvalidOption, TowpathError

if TYPE_CHECKING:
    from towpath.apps.uploads.client.sending import SendOptions, Sent
    from towpath.calls.own_server import ServerAddress, ServerConnection

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_STDIN = "-"
_SMALL = 8 * 1024 * 1024
"""Bytes: files up to this size are sent several at once; larger ones one by one, with all
connections."""
_FILES_AT_ONCE = 16
_UNITS = {"": 1, "k": 1024, "kib": 1024, "m": 1024**2, "mib": 1024**2}


class Item(NamedTuple):
    """A file to be sent."""

    file: Path
    shown: str
    """Its path as given on the command line."""
    name: str


FilesArgument = Annotated[
    list[str], typer.Argument(metavar="FILE…", help="Files to send; - is standard input.")
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", "--api-url", metavar="URL", help="URL of the HTTP server.  [setting: api_url]"
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="API key; better use the setting.  [setting: api_key]"
    ),
]
Parallel = Annotated[
    int | None,
    typer.Option(
        "--parallel",
        "-p",
        min=1,
        max=64,
        help="Requests under way at once.  [default: 4; up to 16 for small files]",
    ),
]
ChunkSize = Annotated[
    str | None,
    typer.Option(
        "--chunk-size", metavar="SIZE", help="Size of a chunk, 64k to 64m.  [default: the server's]"
    ),
]


@verb(
    app,
    "upload",
    examples="""
        towpath upload film.mkv
        towpath upload photos/*.jpg --connector family --json
        tar -c project | towpath upload - --name project.tar
        TOWPATH_API_KEY_FILE=key towpath upload film.mkv --server https://files.example
    """,
)
def upload(
    session: Session,
    *,
    files: FilesArgument,
    server: ServerOption = None,
    key: KeyOption = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Its name on the server; for one file only."),
    ] = None,
    parallel: Parallel = None,
    chunk_size: ChunkSize = None,
    connector: Annotated[
        str | None,
        typer.Option("--connector", metavar="ID", help="The connector to store it under."),
    ] = None,
    drive: Annotated[
        str | None, typer.Option("--drive", metavar="NAME", help="The drive to store it on.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Upload it as a new document, even if it is stored already."),
    ] = False,
) -> None:
    """Send files to a server, and wait until they are stored.

    After an interruption, by Ctrl-C or a crash on either side, the same command continues. A file
    that is stored already under the same name is not sent again. The key needs the scopes submit
    and read. At the end, the server has compared the checksum of the stored file with yours.
    """
    from towpath.apps.uploads.client.sending import SendOptions  # noqa: PLC0415 -- slow to import

    if name is not None and len(files) > 1:
        raise InvalidOption("name", name, rule="is for one file")
    given = {"connector_id": connector, "drive": drive}
    wish = SendOptions(
        at_once=parallel,
        chunk_size=read_size(chunk_size),
        again=again,
        fields={field: value for field, value in given.items() if value is not None},
    )
    uploads = _Uploads(session, _address(session, server, key), wish)
    with _prepare_files(files, name, before_stdin=uploads.reach) as items:
        code = uploads.run(items)
    if code:
        raise typer.Exit(code)


def _address(session: Session, server: str | None, key: str | None) -> ServerAddress:
    from towpath.calls.own_server import ServerAddress  # noqa: PLC0415 -- slow to import

    settings = session.settings
    url = server or settings.api_url
    secret = str(key or settings.value("api_key") or "")
    if not secret:
        rule = "is required: set TOWPATH_API_KEY, or TOWPATH_API_KEY_FILE to a file with the key"
        raise InvalidOption("key", "", rule=rule)
    address = ServerAddress.parse(url, secret)
    if "@" in urlsplit(url).netloc:
        rule = "must be an http or https URL without a user or password"
        raise InvalidOption("server", "…", rule=rule)
    if not secret.isprintable() or " " in secret or not secret.isascii():
        rule = "must be a key, as printed by `towpath keys create`"
        raise InvalidOption("key", "…", rule=rule)
    return address


def read_size(text: str | None) -> int | None:
    """Bytes of a size such as 256k; None for none. Raises InvalidOption."""
    if text is None:
        return None
    number = text.lower().rstrip("kmib")
    unit = text.lower()[len(number) :]
    if not number.isdigit() or unit not in _UNITS:
        raise InvalidOption("chunk-size", text, rule="must be a size such as 262144, 256k or 8m")
    return int(number) * _UNITS[unit]


@contextmanager
def _prepare_files(
    names: Sequence[str], name: str | None, *, before_stdin: Callable[[], None]
) -> Generator[list[Item]]:
    """Check the files. Standard input is copied to a file, so that it can be sent again."""
    items: list[Item] = []
    with tempfile.TemporaryDirectory(prefix="towpath-upload-") as folder:
        for given in names:
            file = Path(given)
            if given == _STDIN:
                before_stdin()
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as copy:
                    shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
                file = Path(copy.name)
            try:
                mode = file.stat().st_mode
                os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise FileUnreadable(f"{given}: {reason}") from error
            if not S_ISREG(mode):
                raise NotAFile(f"{given} is {'a directory' if file.is_dir() else 'no file'}")
            items.append(Item(file, given, name or ("stdin" if given == _STDIN else file.name)))
        yield items


class _Uploads:
    """The files of one command."""

    def __init__(self, session: Session, address: ServerAddress, wish: SendOptions) -> None:
        from towpath.apps.uploads.client.sending import StopSignal  # noqa: PLC0415 -- slow to import

        self._session, self._address, self._wish = session, address, wish
        self._idle: list[ServerConnection] = []  # the next file uses them again
        self._reached = threading.Event()
        self._new_stop = partial(StopSignal, self._idle, self._reached)
        self._stops: list[StopSignal] = []
        self._unreachable: UploadServerUnreachable | None = None
        self._printing = threading.Lock()  # several threads print lines

    def reach(self) -> None:
        """Check that the server can be reached. Raises UploadServerUnreachable."""
        from towpath.apps.uploads.client.sending import reach  # noqa: PLC0415 -- slow to import

        # Not kept: the server closes connections that are idle while standard input is read.
        reach(self._address).close()
        self._reached.set()

    def run(self, items: Sequence[Item]) -> int:
        """Send all files; returns the exit code of one that could not be sent, or 0."""
        sizes = [item.file.stat().st_size for item in items]
        small = [item for item, size in zip(items, sizes, strict=True) if size <= _SMALL]
        large = [item for item, size in zip(items, sizes, strict=True) if size > _SMALL]
        doing = items[0].shown if len(items) == 1 else f"{len(items)} files"
        try:
            with self._session.out.transfer(doing, sum(sizes)) as sent:
                codes = [self._send_file(item, sent) for item in large]
                if len(small) == 1:
                    codes.append(self._send_file(small[0], sent))
                elif small:
                    with ThreadPoolExecutor(self._wish.at_once or _FILES_AT_ONCE) as pool:
                        tasks = [pool.submit(self._send_file, item, sent) for item in small]
                        codes += [task.result() for task in as_completed(tasks)]
        except KeyboardInterrupt:
            for stop in self._stops:
                stop.set()
            self._session.out.note("interrupted: run the same command again to continue")
            raise
        return next((code for code in codes if code), 0)

    def _send_file(self, item: Item, sent: Callable[[int], None]) -> int:
        from towpath.apps.uploads.client.sending import Sending  # noqa: PLC0415 -- slow to import

        if self._unreachable is not None:
            return exit_code(self._unreachable)
        stop, began = self._new_stop(), steady()
        self._stops.append(stop)
        try:
            found = Sending(self._address, item.file, item.name, self._wish, stop).run(sent)
            stop.leave()
        except InterruptedError:
            return 0  # the command ends
        except OSError as error:
            return self._report_refusal(FileUnreadable(f"{item.shown}: {error.strerror or error}"))
        except TowpathError as error:
            if self._session.debug:
                raise
            return self._report_refusal(error)
        finally:
            stop.set()
        self._report_stored(item, found, steady() - began)
        return 0

    def _report_refusal(self, error: TowpathError) -> int:
        with self._printing:
            if isinstance(error, UploadServerUnreachable):  # printed once for all files
                if self._unreachable is not None:
                    return exit_code(error)
                self._unreachable = error
            self._session.refused(error)
        return exit_code(error)

    def _report_stored(self, item: Item, found: Sent, seconds: float) -> None:
        upload, size = found.upload, found.upload["final_size"]
        value: dict[str, Any] = {
            "file": item.shown,
            "upload_id": upload["upload_id"],
            "node_id": upload["node_id"],
            "status": upload["status"],
            "size": size,
            "etag": upload["final_etag"],
            "checksum": {"algorithm": found.checksum.algorithm, "value": found.checksum.value},
            "resumed_from": found.resumed,
            "seconds": round(seconds, 3),
        }
        words = f"{item.shown}  {upload['upload_id']}  {size} bytes, {found.checksum.algorithm} ok"
        if found.resumed == size and size:
            words += ", already stored"
        with self._printing:
            self._session.out.answer(value, words)
