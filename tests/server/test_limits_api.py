"""Limits: how large, how deep, how slow and how often. Memory stays flat."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.serving import RawConnection, RunningServer, code, memory, problem
from tests.waiting import eventually

JOBS = "/api/v1/queues/mails/jobs"
MB = 1024 * 1024


def head(served: RunningServer, *more: str, path: str = JOBS) -> str:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"X-API-Key: {served.key}", *more]
    return "\r\n".join([*lines, "", ""])


JSON = "Content-Type: application/json"


class TestABody:
    @pytest.mark.parametrize("form", ["declared", "streamed"])
    def test_over_the_limit_is_refused_and_the_client_can_read_the_answer(
        self, running: RunningServer, form: str
    ) -> None:
        content: Any = b"x" * (25 * MB) if form == "declared" else chunks(25)
        headers = {"Content-Type": "application/json"}
        answer = running.client().post(JOBS, content=content, headers=headers)
        assert code(answer, 413) == "body-too-large"

    def test_of_exactly_the_limit_is_read(self, running: RunningServer) -> None:
        body = b'{"payload": "' + b"x" * (2 * MB - 15) + b'"}'
        assert len(body) == 2 * MB
        headers = {"Content-Type": "application/json"}
        answer = running.client().post(JOBS, content=body, headers=headers)
        assert code(answer, 413) == "payload-too-large"  # the queue's limit, not the server's

    def test_of_25_mb_leaves_memory_flat(self, running: RunningServer) -> None:
        """Ten of them, one after the other and streamed, cost less than half of one."""
        client, before = running.client(), memory(running)
        headers = {"Content-Type": "application/json"}
        for _ in range(10):
            client.post(JOBS, content=chunks(25), headers=headers)
        assert memory(running) - before < 10 * MB

    def test_many_at_once_leave_memory_flat(self, running: RunningServer) -> None:
        """They have declared 25 MB each and never send more than the sockets hold."""
        before = memory(running)
        lines = [RawConnection(running) for _ in range(30)]
        for line in lines:
            line.send(head(running, JSON, "Transfer-Encoding: chunked"))
            line.send(b"100000\r\n" + b" " * MB + b"\r\n")
        grown = memory(running) - before
        for line in lines:
            line.__exit__()
        assert grown < 30 * 3 * MB

    def test_that_comes_too_slowly_is_refused(self, limited: RunningServer) -> None:
        with RawConnection(limited) as line:
            line.send(head(limited, JSON, "Content-Length: 100") + '{"payload":')
            status, headers, body = line.answer()
            assert (status, headers["connection"]) == (408, "close")
            assert json.loads(body)["type"].endswith("/body-too-slow")
            assert line.closed()

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "x"])
    def test_that_is_not_json_by_its_type_is_refused(
        self, running: RunningServer, kind: str
    ) -> None:
        """The error names the content type; curl sends a form by default."""
        answer = running.client().post(
            JOBS, content=b'{"payload": 1}', headers={"Content-Type": kind}
        )
        told = problem(answer, 415)
        assert told["type"].endswith("/unsupported-media-type")
        assert kind in told["detail"]
        assert "Content-Encoding" not in told["detail"]
        assert "-H 'Content-Type: application/json'" in told["remedy"]

    def test_that_is_compressed_is_refused(self, running: RunningServer) -> None:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer = running.client().post(JOBS, content=b"\x1f\x8b", headers=headers)
        told = problem(answer, 415)
        assert told["type"].endswith("/unsupported-media-type")
        assert "Content-Encoding" in told["detail"]

    @pytest.mark.parametrize(
        "kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"]
    )
    def test_with_another_content_type_for_json_is_read(
        self, running: RunningServer, kind: str
    ) -> None:
        headers = {"Content-Type": kind}
        answer = running.client().post(JOBS, content=b'{"payload": 1}', headers=headers)
        assert answer.status_code == 202

    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"{'payload': 1}",
            b'{"payload": NaN}',
            b'{"payload": 1e999}',
            b'{"payload": 1}}',
            b'{"payload": "\\ud800"}',
            b'{"payload": "\xff"}',
            '{"payload": 1}'.encode("utf-16"),
            b'\xef\xbb\xbf{"payload": 1}',
            b'{"payload": ' + b"1" * 5000 + b"}",
            b"\x00",
        ],
        ids=lambda body: repr(body[:24]),
    )
    def test_that_is_only_nearly_json_is_refused(self, running: RunningServer, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        answer = running.client().post(JOBS, content=body, headers=headers)
        assert code(answer, 400) == "malformed-json"

    @pytest.mark.parametrize("body", [b"null", b"1", b'"x"', b"[]", b""])
    def test_that_is_json_but_no_job_is_refused(self, running: RunningServer, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        answer = running.client().post(JOBS, content=body, headers=headers)
        assert code(answer, 422) == "invalid-input"

    def test_may_be_nested_64_deep_and_no_deeper(self, running: RunningServer) -> None:
        client = running.client()
        assert client.post(JOBS, json={"payload": nested(63)}).status_code == 202
        assert code(client.post(JOBS, json={"payload": nested(64)}), 400) == "nested-too-deep"

    def test_brackets_in_text_are_not_nesting(self, running: RunningServer) -> None:
        text = '[{"' * 1000 + "\\"
        assert running.client().post(JOBS, json={"payload": text}).status_code == 202

    @pytest.mark.parametrize(
        "body",
        [
            b"[" * 2_000_000,
            b"[" * 65 + b'"' + b'\\"' * 900_000,
            b"[" * 65 + b'"\\' * 900_000,
            b'[{"a":' * 300_000,
            b"[]" * 1_000_000,
            b"[" * 1_000_000 + b"]" * 1_000_000,
        ],
        ids=lambda body: repr(body[60:76]),
    )
    def test_hostile_nesting_is_refused(self, running: RunningServer, body: bytes) -> None:
        """It is refused in linear time: two million brackets in quadratic time would take hours."""
        headers = {"Content-Type": "application/json"}
        problem(running.client().post(JOBS, content=body, headers=headers), 400)


class TestAHead:
    def test_that_is_too_large_is_refused(self, running: RunningServer) -> None:
        for lines in ([f"X-Long: {'x' * 70_000}"], [f"X-{n}: {'x' * 50}" for n in range(1500)]):
            with RawConnection(running) as line:
                line.send(head(running, *lines))
                status, _, body = line.answer()
                assert status == 431
                assert json.loads(body)["type"].endswith("/head-too-large")

    def test_that_never_ends_is_cut_off(self, running: RunningServer) -> None:
        with RawConnection(running) as line:
            line.send(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 100_000)
            assert line.answer()[0] == 431
            assert line.closed()

    def test_that_comes_too_slowly_is_refused(self, limited: RunningServer) -> None:
        """However little is missing, and after the time that the settings say."""
        began = time.monotonic()
        with RawConnection(limited) as line:
            line.send("GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            status, headers, body = line.answer()
            assert time.monotonic() - began > 0.9
            assert (status, headers["connection"]) == (408, "close")
            assert json.loads(body)["type"].endswith("/head-too-slow")
            assert line.closed()

    def test_of_a_second_request_comes_too_slowly_as_well(self, limited: RunningServer) -> None:
        with RawConnection(limited) as line:
            line.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert line.answer()[0] == 200
            line.send("GET /livez HTTP/1.1\r\nHost:")
            assert line.answer()[0] == 408

    def test_that_never_begins_ends_the_connection(self, limited: RunningServer) -> None:
        with RawConnection(limited) as line:
            assert line.closed()

    def test_of_an_ordinary_size_is_read(self, running: RunningServer) -> None:
        headers = {"X-Long": "x" * 30_000}
        assert running.client().get("/api/v1/queues", headers=headers).status_code == 200

    def test_that_is_no_http_is_refused(self, running: RunningServer) -> None:
        with RawConnection(running) as line:
            line.send("hello\r\n\r\n")
            status, headers, _ = line.answer()
            assert (status, headers["content-type"]) == (400, "application/problem+json")


class TestTheRate:
    def test_is_per_key(self, limited: RunningServer) -> None:
        (_, busy), (_, calm) = limited.make_key("read"), limited.make_key("read")
        client = limited.client(busy)
        answers = list[httpx.Response]()

        def too_many() -> bool:
            """On a busy machine so many requests may take longer than their rate allows for."""
            with ThreadPoolExecutor(8) as senders:
                answers.extend(senders.map(client.get, ["/api/v1/queues"] * 40))
            return any(answer.status_code != 200 for answer in answers)

        eventually(too_many)
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(answers) - len(refused) >= 10
        assert {code(answer, 429) for answer in refused} == {"rate-limited"}
        assert limited.client(calm).get("/api/v1/queues").status_code == 200

    def test_does_not_count_health(self, limited: RunningServer) -> None:
        client = limited.client(key="")
        assert {client.get("/livez").status_code for _ in range(40)} == {200}


def test_an_answer_is_sent_at_once(running: RunningServer) -> None:
    """Headers and body leave at once: a body that waits for the client costs 40 ms each time."""
    client = running.client()

    def came_at_once() -> bool:
        began = time.monotonic()
        client.get("/livez")
        return time.monotonic() - began < 0.02

    eventually(came_at_once)


# ── what these tests have in common ──────────────────────────────────────────────────────


def chunks(megabytes: int) -> Iterator[bytes]:
    for _ in range(megabytes):
        yield b" " * MB


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value
