"""A program that forks after it has used a blocking engine; the tests start it.

Parent and child print a word each. A call that hangs is ended by an alarm and prints nothing. No
call is given up before that, so a damaged connection cannot be replaced unnoticed.
"""

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable

from tests.waiting import eventually
from towpath import Engine, QueueOptions, Towpath, hours, seconds
from towpath.app.blocking import Blocking
from towpath.app.job import BlockingJob
from towpath.engine.channel import Limits
from towpath.errors import EngineClosed, JobUnfinished

MAILS = "mails"
LONGEST_S = 10
LIMITS = Limits(answer=seconds(60), give_up=seconds(60))
app = Towpath(sys.argv[1], limits=LIMITS)


@app.handler(MAILS)
async def send(_: str) -> None: ...


def handlers() -> None:
    send.blocking.submit("of the parent")
    in_child(lambda: say("child", send.blocking.submit("of the child").existed))
    say("parent", send.blocking.submit("of the parent again").existed)


def middle() -> None:
    """Another thread is in the middle of its calls when the process is forked."""
    ended = threading.Event()

    def submit_until_ended() -> None:
        while not ended.is_set():
            check("thread")

    def check(who: str) -> None:
        id = f"{who}-{secrets.token_hex(8)}"
        job = send.blocking.submit(who, id=id)
        assert (job.id, job.existed) == (id, False)

    check("parent")
    thread = threading.Thread(target=submit_until_ended)
    thread.start()
    for _ in range(5):
        in_child(lambda: [check("child") for _ in range(20)])
        check("parent")
    ended.set()
    thread.join()


def ends() -> None:
    """Ends the child as the workers of a server end: functions registered with `atexit` run."""
    send.blocking.submit("of the parent")
    in_child(lambda: sys.exit(0))
    say("parent", send.blocking.submit("of the parent again").existed)


def results() -> None:
    """A thread of the parent waits for a result when the process is forked."""
    with Blocking(Engine(sys.argv[1], limits=LIMITS)) as blocking:
        keeping = QueueOptions(keep=hours(1))
        blocking.run(lambda engine: engine.queues.configure(MAILS, keeping))

    def wait_for(job: BlockingJob[None], who: str) -> threading.Thread:
        def wait() -> None:
            try:
                job.result(within=seconds(60))
            except JobUnfinished as error:
                say(who, error.state)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: "cmd=xread" in clients())
        return thread

    def clients() -> str:
        with Blocking(Engine(sys.argv[1])) as blocking:
            answer = blocking.run(lambda engine: engine._store.command("CLIENT", "LIST"))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- there is no other way to it
            return answer.decode()

    def live(who: str) -> None:
        job = send.blocking.submit(who)
        waiting = wait_for(job, who)
        job.cancel()
        waiting.join()

    job = send.blocking.submit("of the parent")
    waiting = wait_for(job, "parent")
    in_child(lambda: live("child"))
    job.cancel()
    waiting.join()


def engine() -> None:
    def use() -> None:
        try:
            blocking.run(lambda engine: engine.submit(MAILS, b"of the child"))
        except EngineClosed as error:
            say("child", error.code)
        try:
            blocking.__enter__()
        except EngineClosed:
            blocking.__exit__()
        with Blocking(Engine(sys.argv[1])) as other:
            say("child", other.run(lambda engine: engine.submit(MAILS, b"of the child")).existed)

    with Blocking(Engine(sys.argv[1], limits=LIMITS)) as blocking:
        blocking.run(lambda engine: engine.submit(MAILS, b"of the parent"))
        in_child(use)
        again = blocking.run(lambda engine: engine.submit(MAILS, b"of the parent again"))
        say("parent", again.existed)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def in_child(work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid:
        say("ended", os.waitpid(pid, 0)[1])
        signal.alarm(LONGEST_S)
        return
    signal.alarm(LONGEST_S)
    work()
    sys.exit(0)


if __name__ == "__main__":
    {"handlers": handlers, "middle": middle, "ends": ends, "engine": engine, "results": results}[
        sys.argv[2]
    ]()
