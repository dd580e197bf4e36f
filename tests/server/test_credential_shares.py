"""One upload credential has a small share of its key's limits: using it up excludes neither the key
that issued it nor the holders of other credentials.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.server.serving import RawConnection, RunningServer, code, up
from tests.waiting import eventually

ROOT = "/api/v1/uploads"
CHUNK = 64 * 1024
STREAMS, REQUESTS, RATE = 40, 60, 30
"""Limits of a key."""
SHARE = 10
"""Percent."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    limits = {
        "TOWPATH_HTTP__STREAMS_PER_KEY": str(STREAMS),
        "TOWPATH_HTTP__REQUESTS_PER_KEY": str(REQUESTS),
    }
    with up(tmp_path_factory.mktemp("shares"), **limits) as running:
        yield running


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that answers few requests a second."""
    with up(tmp_path_factory.mktemp("slow"), TOWPATH_HTTP__RATE=str(RATE)) as running:
        yield running


@dataclass
class Visitor:
    """A client with a credential for one upload."""

    served: RunningServer
    upload: dict[str, Any]

    @property
    def id(self) -> str:
        return self.upload["upload_id"]

    @property
    def token(self) -> str:
        return self.upload["credential"]["credential"]

    def client(self) -> httpx.Client:
        return self.served.client(self.token)

    def follow(self) -> RawConnection:
        return follow(self.served, self.id, self.token)

    def begin_chunk(self, number: int) -> RawConnection:
        """Sends a request whose body never ends."""
        line = RawConnection(self.served)
        line.send(
            f"PUT {ROOT}/{self.id}/chunks/{number} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Length: {CHUNK}\r\n\r\nx"
        )
        return line

    def ask_often(self, times: int) -> list[int]:
        """The statuses of so many requests, which are sent together."""
        ask = f"HEAD /files/{self.id} HTTP/1.1\r\nHost: x\r\nTus-Resumable: 1.0.0\r\n"
        with RawConnection(self.served) as line:
            line.send(f"{ask}Authorization: Bearer {self.token}\r\n\r\n" * times)
            return line.statuses(times)


def follow(served: RunningServer, upload: str, key: str) -> RawConnection:
    line = RawConnection(served)
    line.send(
        f"GET {ROOT}/{upload}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
    )
    return line


@dataclass
class Backend:
    """An application that gives credentials to its visitors."""

    served: RunningServer
    key: str

    def visitor(self) -> Visitor:
        body: dict[str, Any] = {
            "name": "a",
            "size": 100 * CHUNK,
            "chunk_size": CHUNK,
            "credential": {},
        }
        started = self.client().post(ROOT, json=body)
        assert started.status_code == 201, started.text
        return Visitor(self.served, started.json())

    def client(self) -> httpx.Client:
        return self.served.client(self.key)


@pytest.fixture
def backend(served: RunningServer) -> Backend:
    return Backend(served, served.make_key("submit", "read")[1])


def test_one_credential_gets_a_small_share_of_the_streams_of_its_key(
    served: RunningServer, backend: Backend
) -> None:
    hostile, other = backend.visitor(), backend.visitor()
    with ExitStack() as stack:
        opened = [stack.enter_context(hostile.follow()) for _ in range(STREAMS)]
        statuses = [line.status() for line in opened]
        assert statuses.count(200) == STREAMS * SHARE // 100
        assert set(statuses) == {200, 429}
        refused = hostile.client().get(f"{ROOT}/{hostile.id}/events")
        assert code(refused, 429) == "too-many-of-credential"
        for line in (other.follow(), follow(served, other.id, backend.key)):
            with line:
                assert line.status() == 200


def test_one_credential_gets_a_small_share_of_the_requests_of_its_key(
    served: RunningServer, backend: Backend
) -> None:
    hostile, other = backend.visitor(), backend.visitor()
    with ExitStack() as stack:
        lines = [stack.enter_context(hostile.begin_chunk(number)) for number in range(REQUESTS)]
        refused = REQUESTS - REQUESTS * SHARE // 100
        eventually(lambda: len(answered(lines)) == refused)
        assert {line.status() for line in answered(lines)} == {429}
        refused = hostile.client().get(f"{ROOT}/{hostile.id}")
        assert code(refused, 429) == "too-many-of-credential"
        assert other.client().get(f"{ROOT}/{other.id}").status_code == 200
        assert backend.client().get(f"{ROOT}/{hostile.id}").status_code == 200


def answered(lines: list[RawConnection]) -> list[RawConnection]:
    """The clients to which something was sent that they have not read."""
    with selectors.DefaultSelector() as watched:
        for line in lines:
            watched.register(line, selectors.EVENT_READ, line)
        return [found.data for found, _ in watched.select(0)]


def test_one_credential_gets_a_small_share_of_the_rate_of_its_key(slow: RunningServer) -> None:
    """It has three requests a second, and bursts of six; its key has ten times as many."""
    backend = Backend(slow, slow.make_key("submit", "read")[1])
    hostile, other = backend.visitor(), backend.visitor()
    statuses = hostile.ask_often(RATE)
    assert statuses[0] == 200
    assert 429 in statuses
    found = list[httpx.Response]()

    def is_refused() -> bool:
        # Between two requests, a busy machine may leave time for which a request is allowed.
        hostile.ask_often(RATE)
        found.append(hostile.client().get(f"{ROOT}/{hostile.id}"))
        return found[-1].status_code == 429

    eventually(is_refused)
    assert code(found[-1], 429) == "rate-limited"
    assert other.client().get(f"{ROOT}/{other.id}").status_code == 200
    assert backend.client().get(f"{ROOT}/{hostile.id}").status_code == 200


def test_all_credentials_together_do_not_use_the_limits_of_their_key(
    served: RunningServer, backend: Backend
) -> None:
    each = STREAMS * SHARE // 100
    visitors = [backend.visitor() for _ in range(STREAMS // each + 1)]
    with ExitStack() as stack:
        for visitor in visitors[:-1]:
            opened = [stack.enter_context(visitor.follow()) for _ in range(each)]
            assert {line.status() for line in opened} == {200}
        late = visitors[-1].client().get(f"{ROOT}/{visitors[-1].id}/events")
        assert code(late, 429) == "too-many-of-credential"
        with follow(served, visitors[0].id, backend.key) as own:
            assert own.status() == 200
        other = Backend(served, served.make_key("submit", "read")[1]).visitor()
        with other.follow() as line:
            assert line.status() == 200
