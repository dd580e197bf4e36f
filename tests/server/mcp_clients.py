"""The official MCP client, over both transports and with both ways to start a session."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.programs import COMMAND
from tests.waiting import HANGS

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@asynccontextmanager
async def over_http(
    address: str, key: str, *, mode: str = "auto", **headers: str
) -> AsyncGenerator[Client]:
    """A client of `/mcp` at *address*."""
    named = {"Authorization": f"Bearer {key}", **headers} if key else headers
    async with (
        httpx2.AsyncClient(headers=named, timeout=HANGS, verify=_NO_TLS) as lines,
        Client(streamable_http_client(f"{address}/mcp", http_client=lines), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(
    address: str, key: str, *words: str, mode: str = "auto", **env: str
) -> AsyncGenerator[Client]:
    """A client of `towpath mcp`, which it starts."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOWPATH_", "REDIS_"))}
    named = {"TOWPATH_API_URL": address, **({"TOWPATH_API_KEY": key} if key else {}), **env}
    started = StdioServerParameters(
        command=str(COMMAND), args=["mcp", *words], env={**inherited, **named}
    )
    async with Client(started, mode=mode) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def call(client: Client, tool: str, **arguments: Any) -> CallToolResult:
    return await client.call_tool(tool, arguments)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Why the tool failed, as the model is told."""
    result = await call(client, tool, **arguments)
    assert result.is_error, result
    return text_of(result)
