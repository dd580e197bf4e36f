"""A program that calls a tool with the official Python client and may cancel the call.

`python -m tests.server.mcp_vanishing '{"address": …, "key": …, "mode": …, "tool": …,
"arguments": …, "timeout": …}'`. A line on its input cancels the call. It prints
`{"answer": …}` or `{"ended": …}`, and after another request `{"over": true}`; then it stays
connected until its input ends. With `"stdio": true` it starts `towpath mcp`.
"""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

from mcp import MCPError

from tests.server.mcp_clients import over_http, over_stdio


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main(told: dict[str, Any]) -> None:
    connect = over_stdio if told.get("stdio") else over_http
    async with connect(told["address"], told["key"], mode=told["mode"]) as client:
        asking = asyncio.ensure_future(
            client.call_tool(
                told["tool"], told["arguments"], read_timeout_seconds=told.get("timeout")
            )
        )
        if told.get("timeout") is None:
            line = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
            await asyncio.wait((asking, line), return_when=asyncio.FIRST_COMPLETED)
            asking.cancel()
        with suppress(asyncio.CancelledError):
            try:
                say({"answer": (await asking).structured_content})
            except MCPError as error:
                say({"ended": error.code})
        await client.list_tools()  # it is sent after the message that ended the call
        say({"over": True})
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
