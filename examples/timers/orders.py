"""Orders that are cancelled after thirty minutes unless they are paid.

towpath worker examples.timers.orders:app          # runs the timers
python -m examples.timers.orders                   # places four orders and pays two of them
"""

import asyncio
import os
from dataclasses import dataclass

from towpath.apps.timers.plugin import Timers

PAY_WITHIN = os.environ.get("PAY_WITHIN", "30m")

timers = Timers(os.environ.get("REDIS_URL", "redis://localhost"))
app = timers.app


@dataclass
class Order:
    number: int
    customer: str


@timers.worker("order.timeout")
async def cancel_order(order: Order) -> None:
    """Runs when an order was not paid in time."""
    print(f"order {order.number} of {order.customer} was not paid in time", flush=True)


async def place(order: Order) -> None:
    """Set the timer. Placing the same order again is the same timer."""
    task_id = f"order-{order.number}"
    await timers.submit("order.timeout", order, task_id=task_id, delay=PAY_WITHIN)


async def paid(number: int) -> None:
    await timers.cancel("order.timeout", f"order-{number}")


async def main() -> None:
    async with timers:
        for number in range(1, 5):
            await place(Order(number, "Anna"))
        for number in (1, 3):
            await paid(number)
        for timer in (await timers.list(task_type="order.timeout")).timers:
            print(timer.task_id, timer.state, timer.due.isoformat(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
