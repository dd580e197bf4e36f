"""Connections: health checks, admins and others are answered, however many a client opens."""

from __future__ import annotations

import selectors
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.serving import PATIENT, RawConnection, RunningServer, code, serve
from tests.waiting import HANGS, eventually
from towpath.embedded import EmbeddedServer
from towpath.web.open_requests import RESERVE, Connections, connections_within

DESCRIPTORS = 512
MOST = connections_within(DESCRIPTORS)
_LIMIT = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
os.execv(sys.argv[2], sys.argv[2:])
"""
LIMITED = (sys.executable, "-c", _LIMIT, str(DESCRIPTORS), *PATIENT)
"""The command in a process that may open few files."""
FLOOD = 700


@pytest.fixture(scope="module")
def served(home: Path, store: EmbeddedServer) -> Iterator[RunningServer]:
    limits = {"TOWPATH_HTTP__STREAMS_PER_KEY": "100", "TOWPATH_HTTP__WAITS_PER_KEY": "3"}
    with serve(home, store.url, command=LIMITED, **limits) as running:
        yield running


@pytest.fixture
def lines(served: RunningServer) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def flood(served: RunningServer, stack: ExitStack, sent: bytes) -> list[socket.socket]:
    """More connections than the server may have, each with the beginning of a request."""
    opened = list[socket.socket]()
    for _ in range(FLOOD):
        line = stack.enter_context(socket.create_connection(served.host_and_port, timeout=60))
        line.setblocking(False)
        if sent:
            line.send(sent)
        opened.append(line)
    return opened


def open_ones(lines: list[socket.socket]) -> int:
    """The number of lines that the server has not closed."""

    def is_open(line: socket.socket) -> bool:
        try:
            while line.recv(2**16):  # it was answered
                pass
        except BlockingIOError:
            return True
        except ConnectionResetError:
            pass
        return False

    return sum(map(is_open, lines))


SILENT = {
    "nothing": b"",
    "a part of a head": b"GET /livez HTTP/1.1\r\nHost:",
    "a part of a form": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nkey=",
    "a part of a webhook": b"POST /api/v1/webhooks/github HTTP/1.1\r\nHost: x\r\n"
    b"Content-Length: 100\r\n\r\n{",
    "a part of a body with a wrong key": b"POST /api/v1/queues/a/jobs HTTP/1.1\r\nHost: x\r\n"
    b"X-API-Key: tp_wrong\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("sent", SILENT.values(), ids=SILENT)
def test_clients_that_send_incomplete_requests_block_no_other_client(
    served: RunningServer, lines: ExitStack, sent: bytes
) -> None:
    """Known keys are answered even if their address has sent too many wrong ones."""
    reader = served.make_key("read")[1]
    for key in (None, reader):
        assert served.client(key).get("/api/v1/queues").status_code == 200
    flooding = flood(served, lines, sent)
    assert served.client(key="").get("/livez").status_code == 200
    assert served.client(key="").get("/readyz").status_code == 200
    assert served.client().get("/api/v1/keys").status_code == 200
    assert served.client(reader).get("/api/v1/queues").status_code == 200
    eventually(lambda: open_ones(flooding) <= MOST)


def stream(served: RunningServer, key: str) -> RawConnection:
    line = RawConnection(served)
    line.send(f"GET /api/v1/queues/mails/events HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n")
    return line


def test_health_checks_and_admins_have_reserved_connections(served: RunningServer) -> None:
    """Streams hold all connections, so there is no idle one that could be closed."""
    served.api("mails").submit(1)
    _, reader = served.make_key("read")
    with ExitStack() as stack:
        for first in range(0, MOST, 100):
            _, key = served.make_key("read")
            client = served.client(key)
            eventually(lambda client=client: client.get("/api/v1/queues").status_code == 200)
            client.close()
            amount = min(100, MOST - first)
            opened = [stack.enter_context(stream(served, key)) for _ in range(amount)]
            for line in opened:
                line.until(b": following")
        for _ in range(2 * RESERVE):
            late = stack.enter_context(stream(served, reader))
            assert late.answer()[0] == 503
        assert served.client(key="").get("/livez").status_code == 200
        assert served.client(key="").get("/readyz").status_code == 200
        assert served.client().get("/api/v1/keys").status_code == 200
        refused = served.client(reader).get("/api/v1/queues")
        assert code(refused, 503) == "too-many-connections"
        refused = served.client().get("/api/v1/queues/mails/events")  # it would use the reserve
        assert code(refused, 503) == "too-many-connections"
    eventually(lambda: served.client(reader).get("/api/v1/queues").status_code == 200)


def test_one_key_gets_at_most_half_of_all_connections(served: RunningServer) -> None:
    """The requests have bodies that never end; they are neither streams nor claims."""
    _, key = served.make_key("submit")
    head = (
        "POST /api/v1/queues/mails/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-API-Key: {key}\r\nContent-Length: 100\r\n\r\n{{"
    )
    with ExitStack() as stack:
        lines = [stack.enter_context(RawConnection(served)) for _ in range(MOST // 2 + 20)]
        for line in lines:
            line.send(head)
        status, headers, _ = lines[-1].answer()
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        _, other = served.make_key("read")
        assert served.client(other).get("/api/v1/queues").status_code == 200


def test_one_key_has_a_limited_number_of_waiting_claims(served: RunningServer) -> None:
    _, busy = served.make_key("work")
    _, calm = served.make_key("work")
    served.api("claims").submit(1, delay=3600)
    with ExitStack() as stack:
        waiting = [stack.enter_context(waiting_claim(served, busy)) for _ in range(4)]
        [late] = next_answers(waiting)
        assert late == 429
        refused = served.api("claims", busy).post("/claim", {"worker": "w", "wait": 1})
        assert code(refused, 429) == "too-many-of-key"
        other = served.api("claims", calm)
        assert other.post("/claim", {"worker": "w", "wait": 1}).status_code == 204


def next_answers(lines: list[RawConnection]) -> list[int]:
    """The statuses of the requests that are answered first."""
    with selectors.DefaultSelector() as watched:
        for line in lines:
            watched.register(line, selectors.EVENT_READ, line)
        return [found.data.answer()[0] for found, _ in watched.select(HANGS)]


def waiting_claim(served: RunningServer, key: str) -> RawConnection:
    line, body = RawConnection(served), '{"worker": "w", "wait": 60}'
    line.send(
        "POST /api/v1/queues/claims/claim HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-API-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    return line


def test_the_server_never_ran_out_of_descriptors(served: RunningServer) -> None:
    """The last test of this file, after all of the above."""
    assert not [line for line in served.events() if line["event"] == "http.defect"]
    assert "Too many open files" not in served.log.read_text()


# ── the limits of connections, without a server ──────────────────────────────────────────


class Line:
    """A connection that notes whether it was closed."""

    def __init__(self, address: str) -> None:
        self.address, self.reserved, self.closed = address, False, False

    def abort(self) -> None:
        self.closed = True


def added(connections: Connections, address: str, count: int, *, busy: bool) -> list[Line]:
    lines = [Line(address) for _ in range(count)]
    for line in lines:
        assert connections.add(line)
        if busy:
            connections.mark_busy(line)
    return lines


def test_the_connection_that_was_idle_for_longest_is_closed_first() -> None:
    connections = Connections(3, 3)
    first, second, third = added(connections, "a", 3, busy=False)
    connections.mark_busy(first)
    connections.mark_idle(first)
    added(connections, "b", 1, busy=False)
    assert [line.closed for line in (first, second, third)] == [False, True, False]
    assert connections.count == 3


def test_an_address_at_its_limit_replaces_its_own_idle_connection() -> None:
    connections = Connections(10, 2)
    [other] = added(connections, "a", 1, busy=False)
    [older, _] = added(connections, "b", 2, busy=False)
    added(connections, "b", 1, busy=False)
    assert older.closed
    assert not other.closed


def test_a_connection_beyond_the_reserve_is_refused() -> None:
    connections = Connections(2, 100)
    added(connections, "a", 2, busy=True)
    reserve = added(connections, "a", RESERVE, busy=True)
    assert all(map(connections.is_reserved, reserve))
    assert not connections.add(Line("a"))
    connections.remove(reserve[0])
    assert connections.add(Line("a"))


def test_a_reserved_connection_becomes_an_ordinary_one_after_others_have_closed() -> None:
    connections = Connections(2, 100)
    lines = added(connections, "a", 2, busy=True)
    [late] = added(connections, "a", 1, busy=False)
    assert connections.is_reserved(late)
    connections.remove(lines[0])
    assert not connections.is_reserved(late)


def test_closed_connections_leave_nothing_in_memory() -> None:
    connections = Connections(2, 1)
    for address in "abc":
        for line in added(connections, address, 3, busy=False):
            connections.remove(line)
            connections.remove(line)
    assert connections.count == 0
    assert not [value for value in vars(connections).values() if isinstance(value, dict) and value]
