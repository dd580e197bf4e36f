"""Errors of `towpath upload`.

TowpathError
├── InvalidInput
│   ├── NotAFile             only files can be uploaded
│   └── FileUnreadable       the file can't be read
├── FileChanged              the file changed while it was sent
├── FileNotStored            the server could not store the file
├── UploadServerAway         the server does not answer, or can't store files now
│   └── UploadServerUnreachable  no server is at this address
└── UploadServerRefused      the server refuses the request
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from towpath.errors import InvalidInput, RetryAdvice, TowpathError

if TYPE_CHECKING:
    from towpath.calls.own_server import ServerReply


class NotAFile(InvalidInput):
    """Only files can be uploaded; nothing was sent."""

    code = "not_a_file"
    remedy = (
        "Pass the files of a directory (`towpath upload photos/*`), or send one archive: "
        "`tar -c photos | towpath upload - --name photos.tar`."
    )


class FileUnreadable(InvalidInput):
    """The file can't be read; nothing of it was sent."""

    code = "file_unreadable"
    remedy = "Check the file's name and permissions."


class FileChanged(TowpathError):
    """The file changed while it was being sent."""

    code = "file_changed"
    remedy = "Wait until nothing writes to the file, then upload it again."

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} changed while it was being sent")


class FileNotStored(TowpathError):
    """The server could not store the file; it keeps the part that it has."""

    code = "file_not_stored"
    remedy = "Fix what the server reports, then run the same command again: it resumes."
    retry = RetryAdvice.LATER


class UploadServerAway(TowpathError):
    """The server does not answer, or can't store files now; it keeps what was sent."""

    code = "upload_server_away"
    remedy = "Run the same command again: it resumes where it stopped."
    retry = RetryAdvice.LATER


class UploadServerUnreachable(UploadServerAway):
    """No connection to the server could be made; nothing was sent."""

    code = "upload_server_unreachable"
    remedy = "Start the server, or correct its address (--server or the setting api_url)."

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no connection to {url}: {reason}")


class UploadServerRefused(TowpathError):
    """The server refuses the request; trying again would not help."""

    code = "upload_server_refused"
    remedy = "Follow the server's message, check its address, then run the same command again."

    def __init__(self, what: str, answer: ServerReply) -> None:
        message = str(answer.body.get("detail") or f"the server answered {answer.status}")
        if remedy := answer.body.get("remedy"):
            message = f"{message}. {remedy}"
        super().__init__(f"{what}: {message}")
        self.answer = answer
