"""A delay queue in one program: worker classes, threads, and an order that is not paid in time.

    REDIS_URL=redis://localhost python examples/timers/delay_queue.py

It uses the API of a delay queue that is common in Java: the methods `type`, `clazz` and `invoke`
of a TaskWorker, `register`, `set_threads`, `TaskSubmitService.send` and `DelayQueueJob`.
"""

import json
import os
import time
from typing import Any

from towpath.apps.timers.blocking import DelayQueueJob, TaskSubmitService
from towpath.apps.timers.plugin import Timers

timers = Timers(os.environ.get("REDIS_URL", "redis://localhost"))


@timers.worker
class CancelOrder:
    """Cancels an order that was not paid in time."""

    def type(self) -> str:
        return "order.timeout"

    def clazz(self) -> Any:
        return CancelOrder

    def invoke(self, message: str) -> None:
        order = json.loads(message)
        print(f"cancelled order {order['id']}", flush=True)


@timers.worker
class TellCustomer:
    """A second worker of the same type; both are called."""

    def type(self) -> str:
        return "order.timeout"

    def clazz(self) -> Any:
        return TellCustomer

    def invoke(self, message: str) -> None:
        order = json.loads(message)
        print(f"told {order['customer']}", flush=True)


def main() -> None:
    timers.set_threads(4)
    timers.register("order.timeout", 1)

    submit = TaskSubmitService(timers)
    in_a_second = int((time.time() + 1) * 1_000_000)  # 16 digits: microseconds
    params = json.dumps({"id": 7, "customer": "Anna"})
    submit.send(DelayQueueJob("order-7", "order.timeout", in_a_second, params))
    state = timers.blocking.get("order.timeout", "order-7").state
    print(f"order-7 {state}", flush=True)

    while timers.blocking.get("order.timeout", "order-7").state != "done":
        time.sleep(0.1)
    timers.stop()


if __name__ == "__main__":
    main()
