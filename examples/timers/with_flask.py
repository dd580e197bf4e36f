"""An application that gets a call when a timer is due, with Flask.

PORT=8000 SERVER=http://127.0.0.1:8080 TOWPATH_API_KEY=tp_… python with_flask.py
"""

import os
import signal
import sys
from typing import Any

from flask import Flask, request

from towpath.apps.timers.client import TimerAnswer, TimerClient

port = int(os.environ.get("PORT", "8000"))
timers = TimerClient(
    "shop",
    f"http://127.0.0.1:{port}/timers",
    server=os.environ.get("SERVER", "http://127.0.0.1:8080"),
    key=os.environ["TOWPATH_API_KEY"],
)
app = Flask(__name__)


@app.post("/timers")
def called() -> TimerAnswer:
    return timers.answer(request.headers, request.get_data())


@timers.on("order.timeout")
def cancel(order: Any) -> None:
    print(f"cancelled {order['order']}", flush=True)


def end(_signal: int, _frame: object) -> None:
    sys.exit()


if __name__ == "__main__":
    # Else Flask's own server would not remove the instance at its end. Gunicorn does it itself.
    signal.signal(signal.SIGTERM, end)
    with timers:
        app.run("127.0.0.1", port)
