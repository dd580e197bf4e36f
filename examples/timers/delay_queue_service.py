"""The same delay queue in service mode: a central scheduler calls this program when it is time.

    SERVER=http://127.0.0.1:8080 TOWPATH_API_KEY=tp_… PORT=8000 python delay_queue_service.py

As its design has it: the program's name and the types of its TaskWorkers are registered, jobs are
submitted by TaskSubmitService to the scheduler, which keeps them under app and type, and what is
due comes as a request. The key needs the scopes `work` and `submit`.
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
    """Cancels an order when its time is over."""

    def type(self) -> str:
        return "order.timeout"

    def clazz(self) -> Any:
        return CancelOrder

    def invoke(self, message: str) -> None:
        order = json.loads(message)
        print(f"cancelled {order['order']}", flush=True)


def place_order() -> None:
    """An order, and the time it may take to be paid."""
    if not (order := os.environ.get("ORDER")):
        return
    in_a_second = int((time.time() + 1) * 1_000_000)  # 16 digits: microseconds
    params = json.dumps({"order": order})
    TaskSubmitService(timers).send(DelayQueueJob(order, "order.timeout", in_a_second, params))


if __name__ == "__main__":
    threading.Thread(target=place_order).start()
    timers.serve()
