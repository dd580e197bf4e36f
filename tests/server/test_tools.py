"""Tools of applications over MCP, tested with the official client: over HTTP, and over stdio."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from mcp import Client

from tests.server.mcp_clients import call, over_http, over_stdio, refused
from tests.server.serving import RawConnection, RunningServer, code, up
from tests.server.test_applications import NAMED
from towpath.apps.application import ApplicationInvalid, applications, tools_of

ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def greeting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """`towpath up` with an application that has a tool; its pages may use them."""
    origins = {"TOWPATH_HTTP__MCP_ORIGINS": "https://tools.example"}
    with up(tmp_path_factory.mktemp("up"), **NAMED, **origins) as serving:
        yield serving


@pytest.fixture(scope="module")
def reader(greeting: RunningServer) -> str:
    """A key that may only read."""
    return greeting.make_key("read")[1]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
class TestATool:
    async def test_is_listed_and_does_what_its_path_does(
        self, greeting: RunningServer, mode: str
    ) -> None:
        async with over_http(greeting.address, greeting.key, mode=mode) as client:
            await _try_all(client)

    async def test_needs_the_scope_of_its_path(
        self, greeting: RunningServer, reader: str, mode: str
    ) -> None:
        async with over_http(greeting.address, reader, mode=mode) as client:
            said = await refused(client, "greet", name="ann")
            assert said.startswith("scope-missing: ")
            assert "`submit`" in said


class TestADefect:
    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    async def test_is_reported_without_its_message(
        self, greeting: RunningServer, mode: str
    ) -> None:
        """The library logs nothing of its own: its lines may have data of users."""
        async with over_http(greeting.address, greeting.key, mode=mode) as client:
            said = await refused(client, "greet", name="defect")
            assert said.startswith("defect: ")
        told = greeting.events()
        assert any(
            line["event"] == "http.defect" and "service.py" in line["place"] for line in told
        )
        assert not [line for line in told if line.get("logger", "").startswith("mcp")]
        assert "words that nobody may read" not in greeting.log.read_text()


async def _try_all(client: Client) -> None:
    """What a model sees of a tool: its purpose, its result, and its remedy if it refuses."""
    assert "Greet everybody once." in (client.instructions or "")
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    schema = tools["greet"].input_schema
    assert schema["properties"]["name"]["description"] == "Whom to greet."
    assert schema["required"] == ["name"]
    assert (tools["greet"].output_schema or {})["required"] == ["job"]
    result = await call(client, "greet", name="ann")
    assert not result.is_error
    assert result.structured_content == {"job": "ann"}
    said = await refused(client, "greet", name="nobody")
    assert said == "nobody-there: nobody is there\nDo: Greet somebody else."
    said = await refused(client, "greet", nam="ann")
    assert {"name", "nam"} <= set(re.findall(r"(\w+): ", said))
    said = await refused(client, "gret", name="ann")
    assert re.search(r"\bgreet\b", said)


class TestThePath:
    def post(
        self, greeting: RunningServer, key: str | None = None, **headers: str
    ) -> httpx.Response:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        return greeting.client(key).post("/mcp", json=message, headers={**ACCEPT, **headers})

    def test_needs_a_key(self, greeting: RunningServer) -> None:
        assert code(self.post(greeting, ""), 401) == "unauthorized"
        assert code(self.post(greeting, "tp_none"), 401) == "unauthorized"

    def test_is_neither_the_source_nor_the_target_of_a_redirect(
        self, greeting: RunningServer
    ) -> None:
        assert self.post(greeting).status_code == 200
        answer = greeting.client().post("/mcp/", json={}, headers=ACCEPT)
        assert answer.status_code == 404

    def test_is_closed_to_pages_of_other_sites(self, greeting: RunningServer) -> None:
        """A page under a name that resolves to this server gets nothing, even with a key."""
        for origin in ("http://evil.example", "http://127.0.0.1:8080", "null"):
            assert code(self.post(greeting, Origin=origin), 403) == "origin-forbidden"
        for host in ("evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io"):
            assert code(self.post(greeting, Host=host), 403) == "host-forbidden"

    def test_is_open_to_known_origins_and_hosts(self, greeting: RunningServer) -> None:
        for headers in (
            {"Origin": "https://tools.example"},
            {"Host": "localhost:8080"},
            {"Host": "[::1]:8080"},
            {"Host": "10.0.0.7"},
        ):
            assert self.post(greeting, **headers).status_code == 200

    @pytest.mark.parametrize(
        ("body", "status"),
        [(b"{", 400), (b"[" * 5000, 400), (b'"' + b"x" * 3_000_000 + b'"', 413), (b"[]", 400)],
    )
    def test_refuses_invalid_messages(
        self, greeting: RunningServer, body: bytes, status: int
    ) -> None:
        headers = {**ACCEPT, "content-type": "application/json"}
        answer = greeting.client().post("/mcp", content=body, headers=headers)
        assert answer.status_code == status

    def test_gives_each_client_a_session_and_stores_none(self, greeting: RunningServer) -> None:
        """The id only distinguishes clients, so one of another server is as good."""
        message: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        given = set[str]()
        for _ in range(2):
            answer = greeting.client().post("/mcp", json=message, headers=ACCEPT)
            assert answer.status_code == 200
            given.add(answer.headers["mcp-session-id"])
        assert len(given) == 2
        for session in (*given, "of-another-server"):
            answer = self.post(greeting, **{"Mcp-Session-Id": session})
            assert answer.status_code == 200
            assert "mcp-session-id" not in answer.headers

    @pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
    def test_opens_no_streams_of_its_own(self, greeting: RunningServer, method: str) -> None:
        """Clients of the protocol go on without one when they get 405."""
        answer = greeting.client().request(method, "/mcp", headers=ACCEPT)
        assert code(answer, 405) == "method-not-allowed"
        assert answer.headers["allow"] == "POST"

    def test_ends_with_a_client_that_hangs_up(self, greeting: RunningServer) -> None:
        with RawConnection(greeting) as line:
            line.send(
                "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {greeting.key}\r\nContent-Type: application/json\r\n"
                "Content-Length: 100\r\n\r\n{"
            )
        assert self.post(greeting).status_code == 200


class TestTheCommand:
    async def test_offers_the_same_tools_on_standard_input_and_output(
        self, greeting: RunningServer
    ) -> None:
        words = ("--agent", "build-3", "--roles", "backend, docs")  # for tools that take them
        async with over_stdio(greeting.address, greeting.key, *words, **NAMED) as client:
            await _try_all(client)

    async def test_reports_that_the_server_is_away(self) -> None:
        async with over_stdio("http://127.0.0.1:9", "tp_none", mode="legacy", **NAMED) as client:
            said = await refused(client, "greet", name="ann")
            assert said.startswith("call_failed: ")


def test_no_two_applications_have_a_tool_with_the_same_name() -> None:
    *_, application = applications([NAMED["TOWPATH_APPLICATIONS"]])
    other = msgspec.structs.replace(application, name="others")
    with pytest.raises(ApplicationInvalid, match=r"\bgreet\b") as refusal:
        tools_of([application, other])
    assert refusal.value.application == "others"
    assert "greetings" in refusal.value.reason
