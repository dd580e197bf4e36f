"""The rate of httpx alone: `python -m benchmarks.web.httpx_calls URL CALLS TASKS`.

So many tasks post one call after the other over connections that are kept. The body and the headers
are those of a timer's call; nothing is signed, claimed or settled.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
import msgspec

from towpath.supervise import new_loop

BODY = msgspec.json.encode(
    {
        "task_id": "01M7KBPMM43YYWPMF1BX19DVZR",
        "task_type": "bench",
        "app": "bench",
        "params": {"order": 7},
        "attempt": 1,
        "delay_time": 1794872498443,
        "token": 1794872498443123,
    }
)
HEADERS = {
    "content-type": "application/json",
    "webhook-id": "timers%2Ebench--bench%2F01M7KBPMM43YYWPMF1BX19DVZR",
    "webhook-timestamp": "1794872498",
    "webhook-signature": "v1,KDWqqkcTvPaUcY+EUvzDSpk6hdnHK4HLLzjisahorV0=",
}


async def _main(url: str, calls: int, tasks: int) -> None:
    limits = httpx.Limits(max_connections=tasks, max_keepalive_connections=tasks)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        left = iter(range(calls))

        async def post() -> None:
            for _ in left:
                answer = await client.post(url, content=BODY, headers=HEADERS)
                assert answer.status_code == 200

        await asyncio.gather(*(post() for _ in range(tasks)))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
