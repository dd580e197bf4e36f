"""An application that gets a call when a timer is due, without a framework.

PORT=8000 SERVER=http://127.0.0.1:8080 TOWPATH_API_KEY=tp_… python without_framework.py
"""

import os
from typing import Any

from towpath.apps.timers.client import TimerClient

timers = TimerClient(
    "shop",
    f"http://127.0.0.1:{os.environ.get('PORT', '8000')}/timers",
    server=os.environ.get("SERVER", "http://127.0.0.1:8080"),
    key=os.environ["TOWPATH_API_KEY"],
)


@timers.on("order.timeout")
def cancel(order: Any) -> None:
    print(f"cancelled {order['order']}", flush=True)


if __name__ == "__main__":
    timers.serve()
