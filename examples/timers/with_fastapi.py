"""An application that gets a call when a timer is due, with FastAPI.

PORT=8000 SERVER=http://127.0.0.1:8080 TOWPATH_API_KEY=tp_… python with_fastapi.py
"""

import os
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

from towpath.apps.timers.client import TimerClient

port = int(os.environ.get("PORT", "8000"))
timers = TimerClient(
    "shop",
    f"http://127.0.0.1:{port}/timers",
    server=os.environ.get("SERVER", "http://127.0.0.1:8080"),
    key=os.environ["TOWPATH_API_KEY"],
)
app = FastAPI(lifespan=timers.lifespan)


@app.post("/timers")
async def called(request: Request) -> Response:
    return Response(*await timers.answer_async(request.headers, await request.body()))


@timers.on("order.timeout")
async def cancel(order: Any) -> None:
    print(f"cancelled {order['order']}", flush=True)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
