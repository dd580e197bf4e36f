"""An HTTP endpoint in a thread: it accepts what is posted, or answers as scripted."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple


class Posted(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def told(self) -> Any:
        return json.loads(self.body)


@dataclass
class Endpoint:
    """The received posts, and the answers."""

    address: str = ""
    status: int = 204
    posted: list[Posted] = field(default_factory=list[Posted])


@contextmanager
def endpoint() -> Generator[Endpoint]:
    """An endpoint that listens until the block ends."""
    listening = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            listening.posted.append(Posted(self.path, headers, body))
            self.send_response(listening.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        listening.address = f"http://127.0.0.1:{server.server_port}"
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield listening
        finally:
            server.shutdown()
            serving.join()
