"""An app as users write it: at the top of a module, with the address of production."""

from dataclasses import dataclass
from pathlib import Path

from tests.waiting import eventually_async
from towpath import Context, Discard, Fixed, Missed, Snooze, Towpath, hours, minutes

PRODUCTION = "redis://production.invalid"
app = Towpath(PRODUCTION)


@dataclass
class Order:
    """What a customer wants."""

    item: str
    count: int = 1


attempts: list[int] = []
"""What `flaky` was called with; each test begins with none."""


@app.handler("orders")
async def place(order: Order) -> str:
    if order.count < 1:
        raise Discard("nothing is ordered")
    await bill.submit(order.count * 10)
    return f"{order.count} {order.item}"


@app.handler("bills")
def bill(amount: int) -> int:
    """A plain function: it runs in a thread."""
    return amount


@app.handler("bills", name="remind")
async def remind(customer: str) -> None:
    """The second handler of its queue."""


@app.handler("flaky", retry=Fixed(minutes(10)), max_attempts=3)
async def flaky(until: int, ctx: Context) -> int:
    attempts.append(ctx.attempt)
    if ctx.attempt < until:
        raise ConnectionError("the bank does not answer")
    return ctx.attempt


@app.handler("later")
async def later(number: int, ctx: Context) -> int:
    if ctx.claimed_at - ctx.submitted_at < hours(2):
        raise Snooze(hours(2))
    return number


@app.recurring("0 3 * * *", missed=Missed.ALL)
async def nightly(ctx: Context) -> str:
    return ctx.headers["scheduled"]


@app.handler("circles")
async def circle(number: int) -> None:
    await circle.submit(number + 1)


@dataclass
class Gate:
    """Two files: one that the handler makes, and one that it waits for."""

    begun: str
    go: str


@app.handler("held", keep=hours(24))
async def hold(gate: Gate, ctx: Context) -> str:
    Path(gate.begun).write_text(str(ctx.token))  # noqa: ASYNC240 -- a moment, in a test

    async def may_go() -> bool:
        return Path(gate.go).exists()  # noqa: ASYNC240

    await eventually_async(may_go)
    return ctx.worker
