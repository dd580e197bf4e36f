"""A GitHub on this machine: its API over HTTP, webhooks, and failures when a test asks for them.

It needs nothing but the standard library, and runs in threads of its own, so that tests with and
without an event loop can use it, and `towpath` as a process can call it.

    with GitHubDouble() as github:
        github.listen("http://127.0.0.1:8080/api/v1/webhooks/github", secret="…")
        issue = github.at("octo/repo").open("Repair the lock", labels=["P1", "backend"])
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from towpath.clock import wall_ms
from towpath.testing.github.exchange import ApiRequest, Reply
from towpath.testing.github.hooks import GitHubDelivery, GitHubHook, Hooks
from towpath.testing.github.paths import Api
from towpath.testing.github.people import People
from towpath.testing.github.shown import Shown
from towpath.testing.github.state import HUMAN, GitHubIssue, GitHubRepository
from towpath.testing.github.trouble import LIMIT, HangUp, Trouble

TOKEN = "github-double-token"  # noqa: S105 -- of no forge
_HOUR = 3600
_LOOPBACK = "127.0.0.1"


class GitHubDouble:
    """A GitHub at `url`, with one token. It serves from `start` to `stop`, or in a `with` block.

    *check* gets every request and returns what is wrong with it: that is kept in `misfits`, and the
    request is refused. With *live*, webhooks are sent as things happen; else `deliveries` keeps
    them for the test to send. *limit* is how many requests there may be before 403.
    """

    def __init__(
        self,
        *,
        token: str = TOKEN,
        live: bool = True,
        limit: int = LIMIT,
        port: int = 0,
        check: Callable[[ApiRequest], Iterable[str]] | None = None,
    ) -> None:
        self.token, self.limit = token, limit
        self.asked: list[ApiRequest] = []
        self.misfits: list[str] = []
        self.troubles: list[Trouble] = []
        self._events: list[threading.Event] = []
        self.used = 0
        """Requests that count for the limit: those that were answered 304 do not."""
        self._check = check
        self._lock = threading.RLock()
        self._hooks = Hooks(live=live)
        self._repositories: dict[str, GitHubRepository] = {}
        self._moved: dict[str, str] = {}
        self._server = _Server((_LOOPBACK, port), self._handler())
        self.url = f"http://{_LOOPBACK}:{self._server.server_port}"
        self._shown = Shown(self.url)
        self._api = Api(self._shown, self._repositories, self._moved, self._emit)
        self._serving: threading.Thread | None = None

    # ── start and stop ───────────────────────────────────────────────────────────────────

    def start(self) -> GitHubDouble:
        """Answer requests from now on."""
        if self._serving is None:
            self._serving = threading.Thread(
                target=self._server.serve_forever, args=(0.05,), name="github", daemon=True
            )
            self._serving.start()
        return self

    def stop(self) -> None:
        """Stop answering, and close open connections. May be called twice."""
        for until in self._events:
            until.set()
        if self._serving is not None:
            self._server.shutdown()
            self._serving.join()
            self._serving = None
        self._server.close_all()
        self._hooks.stop()

    def __enter__(self) -> GitHubDouble:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── what a test does ─────────────────────────────────────────────────────────────────

    def at(self, full_name: str) -> People:
        """The people of a repository, which is made at the first use."""
        with self._lock:
            found = self._repositories.get(full_name.lower())
            if found is None:
                found = GitHubRepository(len(self._repositories) + 1, full_name)
                self._repositories[full_name.lower()] = found
            return People(found, self._lock, self._emit)

    def rename(self, full_name: str, new: str) -> None:
        """Rename or transfer a repository: requests for its old name are redirected."""
        with self._lock:
            repository = self._repositories.pop(full_name.lower())
            repository.full_name = new
            self._repositories[new.lower()] = repository
            self._moved[full_name.lower()] = new
            (owner, _, name), now = full_name.partition("/"), new.partition("/")[0]
            moved = owner.lower() != now.lower()
            was = {"owner": {"from": {"user": {"login": owner}}}} if moved else {
                "repository": {"name": {"from": name}}
            }  # fmt: skip
            action = "transferred" if moved else "renamed"
            self._emit("repository", action, repository, None, changes=was)

    def delete(self, full_name: str) -> None:
        """Delete a repository: requests for it are answered 404 from now on."""
        with self._lock:
            repository = self._repositories.pop(full_name.lower())
            self._emit("repository", "deleted", repository, None)

    def transfer(self, full_name: str, number: int, to: str) -> int:
        """Transfer an issue to another repository. Returns its number there."""
        with self._lock:
            there, here = self.at(to).repository, self.at(full_name).repository
            old = here.issues[number]
            new = there.add(old.title, old.body, labels=old.labels, author=old.author)
            old.moved = f"{to}#{new.number}"
            here.changed(old)
            self._emit("issues", "transferred", here, old)
            self._emit("issues", "opened", there, new)
            return new.number

    def trouble(self, *troubles: Trouble) -> None:
        """Make requests fail that fit one of the troubles; the first that fits counts."""
        with self._lock:
            self.troubles += troubles
            self._events += [trouble.until for trouble in troubles if trouble.until is not None]

    def calm(self) -> None:
        """Remove all troubles: requests no longer fail."""
        with self._lock:
            self.troubles.clear()

    def listen(self, url: str, *, secret: str, events: Collection[str] = ()) -> None:
        """Send webhooks to *url* from now on, of all events or of these *events*."""
        with self._lock:
            self._hooks.all.append(GitHubHook(url, secret, tuple(events)))

    @property
    def deliveries(self) -> list[GitHubDelivery]:
        """All webhooks so far, the oldest first."""
        with self._lock:
            return list(self._hooks.deliveries)

    @property
    def requests(self) -> list[str]:
        """All requests so far, in short: `GET /repos/octo/repo/issues`."""
        with self._lock:
            return [f"{request.method} {request.path}" for request in self.asked]

    # ── webhooks ─────────────────────────────────────────────────────────────────────────

    def _emit(
        self,
        event: str,
        action: str,
        repository: GitHubRepository,
        issue: GitHubIssue | None,
        *,
        sender: str = HUMAN,
        **more: Any,
    ) -> None:
        if not self._hooks.all:
            return
        shown, payload = self._shown, dict[str, Any]()
        payload["action"] = action
        if issue is not None and event in ("issues", "issue_comment"):
            payload["issue"] = shown.issue(repository, issue)
        elif issue is not None:
            payload["number"] = issue.number
            payload["pull_request"] = shown.pull(repository, issue)
        if "label" in more:
            payload["label"] = shown.label(repository, more["label"])
        if "assignee" in more:
            payload["assignee"] = shown.user(more["assignee"])
        if "comment" in more and issue is not None:
            payload["comment"] = shown.comment(repository, issue, more["comment"])
        if "review" in more and issue is not None:
            review = shown.review(repository, issue, more["review"])
            payload["review"] = {**review, "state": review["state"].lower()}
        if "changes" in more:
            payload["changes"] = more["changes"]
        if "before" in more:
            payload |= {"before": more["before"], "after": more["after"]}
        payload["repository"] = shown.repository(repository)
        payload["sender"] = shown.user(sender)
        self._hooks.emit(event, payload)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        double = self

        class Handler(_Handler):
            def answer_request(self, request: ApiRequest) -> Reply | None:
                return double.answer_request(request)

        return Handler

    def answer_request(self, request: ApiRequest) -> Reply | None:
        """The answer to a request; None = the connection is to be closed instead."""
        with self._lock:
            self.asked.append(request)
            trouble = self._trouble_for(request)
        if trouble is not None:
            if trouble.until is not None:
                trouble.until.wait()
            if trouble.hang_up is HangUp.BEFORE:
                return None
            if trouble.status:
                return Reply(trouble.status, {"message": trouble.message}, trouble.headers)
        with self._lock:
            reply = self._answer(request)
        return None if trouble is not None and trouble.hang_up is HangUp.AFTER else reply

    def _trouble_for(self, request: ApiRequest) -> Trouble | None:
        for trouble in self.troubles:
            if trouble.fits(request):
                if trouble.times is not None:
                    trouble.times -= 1
                    if not trouble.times:
                        self.troubles.remove(trouble)
                return trouble
        return None

    def _answer(self, request: ApiRequest) -> Reply:
        if request.headers.get("authorization") not in (
            f"Bearer {self.token}",
            f"token {self.token}",
        ):
            return Reply(401, {"message": "Bad credentials", "status": "401"})
        if misfits := list(self._check(request)) if self._check else []:
            self.misfits += misfits
            return Reply(400, {"message": f"not as GitHub describes it: {'; '.join(misfits)}"})
        if self.used >= self.limit:
            return _with_limit(Reply(403, {"message": "API rate limit exceeded"}), self)
        reply = self._api.answer(request)
        if reply.status == 501:
            self.misfits.append(str(reply.content["message"]))
        if request.method == "GET" and reply.status == 200:
            etag = f'W/"{hashlib.sha256(json.dumps(reply.content).encode()).hexdigest()}"'
            if request.headers.get("if-none-match") == etag:
                return _with_limit(Reply(304, None, {"etag": etag}), self)
            reply.headers["etag"] = etag
        self.used += 1
        return _with_limit(reply, self)


def _with_limit(reply: Reply, double: GitHubDouble) -> Reply:
    reply.headers.update(
        {
            "x-ratelimit-limit": str(double.limit),
            "x-ratelimit-used": str(double.used),
            "x-ratelimit-remaining": str(max(0, double.limit - double.used)),
            "x-ratelimit-reset": str((wall_ms() // 1000 // _HOUR + 1) * _HOUR),
        }
    )
    return reply


class _Server(ThreadingHTTPServer):
    """An HTTP server that knows its open connections, so that it can close them."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client has left."""

    def close_all(self) -> None:
        self.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer_request(self, request: ApiRequest) -> Reply | None:
        raise NotImplementedError

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = parse_qs(parts.query, keep_blank_values=True)
        path = parts.path.removeprefix("/api/v3")
        reply = self.answer_request(ApiRequest(self.command, path, query, headers, body))
        if reply is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        content = b"" if reply.content is None else json.dumps(reply.content).encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("content-type", "application/json; charset=utf-8")
            self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 -- the library's names

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
