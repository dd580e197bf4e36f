"""The same delay queue in service mode: a central server calls this program when a timer is due.

    SERVER=http://127.0.0.1:8080 TOWPATH_API_KEY=tp_… PORT=8000 python delay_queue_service.py

The program registers its name and the types of its TaskWorkers. TaskSubmitService submits jobs to
the server, which stores them by app and type. When a job is due, the server sends a request. The
API key needs the scopes `work` and `submit`.
"""

import json
import os
import threading
import time
from typing import Any

from towpath.apps.timers.blocking import DelayQueueJob, TaskSubmitService
from towpath.apps.timers.client import TimerClient

timers = TimerClient(
    "shop",
    f"http://127.0.0.1:{os.environ.get('PORT', '8000')}/timers",
    server=os.environ.get("SERVER", "http://127.0.0.1:8080"),
    key=os.environ["TOWPATH_API_KEY"],
)


@timers.worker
class CancelOrder:
    """Cancels an order that was not paid in time."""

    def type(self) -> str:
        return "order.timeout"

    def clazz(self) -> Any:
        return CancelOrder

    def invoke(self, message: str) -> None:
        order = json.loads(message)
        print(f"cancelled {order['order']}", flush=True)


def place_order() -> None:
    """Place an order that must be paid within a second."""
    if not (order := os.environ.get("ORDER")):
        return
    in_a_second = int((time.time() + 1) * 1_000_000)  # 16 digits: microseconds
    params = json.dumps({"order": order})
    TaskSubmitService(timers).send(DelayQueueJob(order, "order.timeout", in_a_second, params))


if __name__ == "__main__":
    threading.Thread(target=place_order).start()
    timers.serve()
