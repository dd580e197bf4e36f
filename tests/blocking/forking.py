"""A program that forks after it has used a blocking engine; the tests start it.

Parent and child print a word each; what hangs is ended by an alarm and prints nothing.
"""

import os
import signal
import sys
from collections.abc import Callable

from towpath import BlockingEngine, Towpath
from towpath.errors import EngineClosed

MAILS = "mails"
LONGEST_S = 10
app = Towpath(sys.argv[1])


@app.handler(MAILS)
async def send(_: str) -> None: ...


def handlers() -> None:
    send.blocking.submit("of the parent")
    in_child(lambda: print("child", send.blocking.submit("of the child").existed, flush=True))
    print("parent", send.blocking.submit("of the parent again").existed, flush=True)


def ends() -> None:
    """As the workers of a server do: what is registered for the end of the program runs."""
    send.blocking.submit("of the parent")
    in_child(lambda: sys.exit(0))
    print("parent", send.blocking.submit("of the parent again").existed, flush=True)


def engine() -> None:
    def use() -> None:
        try:
            blocking.submit(MAILS, b"of the child")
        except EngineClosed as error:
            print("child", error, flush=True)
        try:
            blocking.__enter__()
        except EngineClosed:
            blocking.__exit__()
        with BlockingEngine(sys.argv[1]) as other:
            print("child", other.submit(MAILS, b"of the child").existed, flush=True)

    with BlockingEngine(sys.argv[1]) as blocking:
        blocking.submit(MAILS, b"of the parent")
        in_child(use)
        print("parent", blocking.submit(MAILS, b"of the parent again").existed, flush=True)


def in_child(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid:
        print("ended", os.waitpid(pid, 0)[1], flush=True)
        return
    signal.alarm(LONGEST_S)
    work()
    sys.exit(0)


if __name__ == "__main__":
    {"handlers": handlers, "ends": ends, "engine": engine}[sys.argv[2]]()
