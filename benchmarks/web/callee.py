"""An instance of an application that costs little: `python -m benchmarks.web.callee CALLS`.

Prints its address as one JSON object, and then, whenever it was called so many times, the seconds
from the first of these calls to the last. Connections are kept.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import msgspec

from towpath.supervise import new_loop

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_HEAD_ENDS, _LENGTH = b"\r\n\r\n", b"content-length:"


class ReceivedCalls(msgspec.Struct):
    """The calls of one round."""

    each: int
    count: int = 0
    began: float = 0.0
    connections: int = 0

    def called(self) -> None:
        self.count += 1
        if self.count == 1:
            self.began = time.perf_counter()
        if self.count == self.each:
            seconds = time.perf_counter() - self.began
            print(json.dumps({"seconds": seconds, "connections": self.connections}), flush=True)
            self.count = 0


class CalleeProtocol(asyncio.Protocol):
    """One connection: answers 200 to each request that has a length."""

    def __init__(self, calls: ReceivedCalls) -> None:
        self._calls, self._buffer = calls, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._calls.connections += 1

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer += data
        while (end := self._buffer.find(_HEAD_ENDS)) >= 0:
            head = self._buffer[:end].lower()
            length = head.rpartition(_LENGTH)[2].partition(b"\r\n")[0]
            whole = end + len(_HEAD_ENDS) + int(length)
            if len(self._buffer) < whole:
                return
            self._buffer = self._buffer[whole:]
            self._transport.write(_ANSWER)
            self._calls.called()


async def _main(each: int) -> None:
    calls = ReceivedCalls(each)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CalleeProtocol(calls), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    print(json.dumps({"address": f"http://{host}:{port}/timers"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_main(int(sys.argv[1])))
