"""Requests whose end two programs could see at different places are refused, and the connection
ends.

A proxy before the server that reads such a request differently would take a part of its body for
another request.
"""

import json

import pytest

from tests.server.serving import RawConnection, RunningServer

LINE, HOST = "POST /livez HTTP/1.1\r\n", "Host: x\r\n"
CHUNKS, END = "0\r\n\r\n", "\r\n"
SMUGGLED = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"

AMBIGUOUS = {
    "an unknown transfer coding": f"{LINE}{HOST}Transfer-Encoding: x, chunked\r\n{END}{CHUNKS}",
    "chunked that is not the last coding": (
        f"{LINE}{HOST}Transfer-Encoding: chunked, identity\r\n{END}{CHUNKS}"
    ),
    "a compressed transfer": f"{LINE}{HOST}Transfer-Encoding: gzip, chunked\r\n{END}{CHUNKS}",
    "chunked twice in one header": (
        f"{LINE}{HOST}Transfer-Encoding: chunked, chunked\r\n{END}{CHUNKS}"
    ),
    "two transfer codings": (
        f"{LINE}{HOST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n{END}{CHUNKS}"
    ),
    "a transfer coding after an unknown one": (
        f"{LINE}{HOST}Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n{END}{CHUNKS}"
    ),
    "an empty transfer coding": f"{LINE}{HOST}Transfer-Encoding:\r\n{END}{CHUNKS}",
    "a quoted transfer coding": f'{LINE}{HOST}Transfer-Encoding: "chunked"\r\n{END}{CHUNKS}',
    "a coding after a vertical tab": f"{LINE}{HOST}Transfer-Encoding: \vchunked\r\n{END}{CHUNKS}",
    "a coding with HTTP/1.0": (
        f"POST /livez HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n{END}{CHUNKS}"
    ),
    "a length and a coding": (
        f"{LINE}{HOST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n{END}{CHUNKS}"
    ),
    "a coding and a length": (
        f"{LINE}{HOST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n{END}{CHUNKS}"
    ),
    "two lengths": f"{LINE}{HOST}Content-Length: 1\r\nContent-Length: 2\r\n{END}ab",
    "the same length twice": f"{LINE}{HOST}Content-Length: 1\r\nContent-Length: 1\r\n{END}a",
    "a list of lengths": f"{LINE}{HOST}Content-Length: 1, 1\r\n{END}a",
    "a length with a sign": f"{LINE}{HOST}Content-Length: +1\r\n{END}a",
    "a length in hexadecimal": f"{LINE}{HOST}Content-Length: 0x1\r\n{END}a",
    "an empty length": f"{LINE}{HOST}Content-Length:\r\n{END}",
    "no host": f"{LINE}Content-Length: 0\r\n{END}",
    "no host in a GET": f"GET /livez HTTP/1.1\r\n{END}",
    "two hosts": f"GET /livez HTTP/1.1\r\n{HOST}Host: y\r\n{END}",
    "a header in two lines": f"{LINE}{HOST}X-A: a\r\n b\r\nContent-Length: 0\r\n{END}",
    "a header that begins with a blank": f"{LINE} X-A: a\r\n{HOST}Content-Length: 0\r\n{END}",
    "a blank before the colon": f"{LINE}{HOST}Content-Length : 0\r\n{END}",
    "a bare CR in a header": f"{LINE}{HOST}X-A: a\rContent-Length: 0\r\n{END}",
    "a bare LF in a header": f"{LINE}{HOST}X-A: a\nContent-Length: 0\r\n{END}",
    "a bare LF after the headers": f"{LINE}{HOST}Content-Length: 0\r\n\n",
    "a bare LF after the request line": f"POST /livez HTTP/1.1\n{HOST}Content-Length: 0\r\n{END}",
    "a zero byte in a header": f"{LINE}{HOST}X-A: a\0b\r\nContent-Length: 0\r\n{END}",
    "a chunk of a bad size": f"{LINE}{HOST}Transfer-Encoding: chunked\r\n{END}-1\r\n\r\n",
    "a chunk that ends with a bare LF": (
        f"{LINE}{HOST}Transfer-Encoding: chunked\r\n{END}1\na\n0\n\n"
    ),
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_an_ambiguous_request_is_refused_and_nothing_after_it_is_read(
    running: RunningServer, kind: str
) -> None:
    with RawConnection(running) as line:
        line.send(AMBIGUOUS[kind] + SMUGGLED)
        status, headers, body = line.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["type"].endswith("/malformed-request")
        assert line.closed()


@pytest.mark.parametrize(
    "text",
    [
        SMUGGLED,
        "GET /livez HTTP/1.0\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost:\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        f"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n{CHUNKS}",
        f"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:  chunked \r\n\r\n{CHUNKS}",
    ],
)
def test_an_ordinary_request_is_answered(running: RunningServer, text: str) -> None:
    with RawConnection(running) as line:
        line.send(text)
        assert line.answer()[0] == 200


def test_the_answer_before_a_refused_request_is_complete(running: RunningServer) -> None:
    with RawConnection(running) as line:
        line.send(SMUGGLED)
        assert line.answer()[0] == 200
        line.send(AMBIGUOUS["two transfer codings"])
        assert line.answer()[0] == 400
        assert line.closed()
