"""Ctrl-C and signal handlers at critical moments of an engine without an event loop."""

import itertools
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from tests.waiting import HANGS, eventually
from towpath.clock import minutes, seconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine import thread_signal
from towpath.engine.blocking import BlockingConnection, BlockingNode, BlockingPort, run_to_end
from towpath.engine.channel import Limits
from towpath.engine.connection import Endpoint
from towpath.engine.engine import Engine
from towpath.engine.resp import encode_command
from towpath.engine.thread_signal import ThreadSignal
from towpath.engine.time_limit import Deadline
from towpath.errors import ServerUnreachable

_PACKS_UNDER_ALARMS = """
import signal
from towpath.engine.resp import encode_command
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
interrupts = 0
while interrupts < 3000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while True:
            encode_command(("EVALSHA", "a" * 40, 2, "key", "never", "", "channel", 17, b"x"))
    except KeyboardInterrupt:
        interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@contextmanager
def engine_in_threads(url: str, limits: Limits) -> Generator[Engine]:
    engine = Engine(url, limits=limits).in_threads()
    run_to_end(engine.__aenter__())
    try:
        yield engine
    finally:
        engine.close_here()


def test_an_interrupt_while_a_command_is_encoded_does_not_crash_the_process() -> None:
    """hiredis crashes if the conversion of a number to text raises, so it gets no numbers."""
    ran = subprocess.run([sys.executable, "-c", _PACKS_UNDER_ALARMS], timeout=HANGS, check=False)
    assert ran.returncode == 0


def test_numbers_are_sent_as_text() -> None:
    assert encode_command(("PEXPIRE", "k", 1500, 0.5)) == encode_command(
        ("PEXPIRE", "k", "1500", "0.5")
    )


class _InterruptedTurns(deque[Any]):
    """Turns, of which the first is taken just before Ctrl-C."""

    def popleft(self) -> Any:
        turn = super().popleft()
        signal.raise_signal(signal.SIGINT)
        return turn


def test_a_turn_that_an_interrupted_call_took_is_waited_for_again(server: EmbeddedServer) -> None:
    limits = Limits(answer=minutes(1), give_up=minutes(5), channels=1)
    with engine_in_threads(server.url, limits) as engine:
        run_to_end(engine.submit("mails", b"x"))
        calls = engine._store.calls  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- the moment has no other handle
        [node] = calls._nodes.values()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- the same
        assert isinstance(node, BlockingNode)
        channel: Any = run_to_end(node.take(calls.new_deadline()))
        turns = node._turns = _InterruptedTurns()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- the same
        other = threading.Thread(target=lambda: run_to_end(engine.submit("mails", b"x", id="o")))
        other.start()
        eventually(lambda: len(turns) == 1)
        with pytest.raises(KeyboardInterrupt):
            node.give_back(channel)
        node.give_back(channel)
        other.join(HANGS)
        assert not other.is_alive()
        assert run_to_end(engine.submit("mails", b"x", id="o")).existed


@pytest.mark.parametrize("signals", [ThreadSignal, threading.Event])
def test_a_signal_can_be_set_again_wherever_an_interrupt_ended_it(signals: Any) -> None:
    """An Event cannot: its lock stays taken."""
    left = [step for step in range(30) if not _is_free_after_interrupt(signals(), step)]
    assert bool(left) == (signals is threading.Event)


def _is_free_after_interrupt(one: Any, step: int) -> bool:
    """Whether the signal can be set after Ctrl-C at that step of the interpreter ended another
    `set`.
    """
    steps, files = itertools.count(), {thread_signal.__file__, threading.__file__}

    def interrupt(frame: FrameType, *_: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None  # the garbage collector runs finalizers meanwhile
        if next(steps) == step:
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        one.set()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    lock = getattr(one, "_cond", None)
    if lock is not None and not lock.acquire(blocking=False):
        return False
    if lock is not None:
        lock.release()
    one.set()
    one.wait(0)
    return True


def test_a_signal_is_consumed_by_the_wait_for_it() -> None:
    one = ThreadSignal()
    one.set()
    one.set()
    one.wait(HANGS)
    one.clear()
    one.wait(0)
    threading.Timer(0.01, one.set).start()
    one.wait(HANGS)


def test_a_submit_in_a_signal_handler_keeps_the_time_limit_of_the_interrupted_call() -> None:
    """Both calls wait for a frozen Redis, and both are given up."""
    limits = Limits(answer=seconds(0.3), give_up=seconds(1))
    refused: list[str] = []

    def submit(*_: object) -> None:
        with suppress(ServerUnreachable):
            run_to_end(engine.submit("mails", b"x", id="by-the-handler"))
            refused.append("answered")
        refused.append("by-the-handler")

    with EmbeddedServer() as server, engine_in_threads(server.url, limits) as engine:
        run_to_end(engine.submit("mails", b"x"))
        before = signal.signal(signal.SIGALRM, submit)
        server.pause()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(ServerUnreachable):
                run_to_end(engine.submit("mails", b"x"))
        finally:
            signal.signal(signal.SIGALRM, before)
            server.unpause()
    assert refused == ["by-the-handler"]


def test_a_limit_of_an_interrupted_call_does_not_end_the_next_call() -> None:
    port = BlockingPort()
    limit = port.time_limit(seconds(60), lambda: None)
    port.clock.until = steady() - 1
    with limit.until(Deadline(limit, 60)):
        assert port.clock.until > steady()


def test_a_time_limit_ends_an_answer_that_trickles_in() -> None:
    """This answer never comes to its end."""
    over = threading.Event()

    def trickle(listening: socket.socket) -> None:
        line, _ = listening.accept()
        with line:
            line.sendall(b"$1000000\r\n")
            while not over.wait(0.01):
                line.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=trickle, args=(listening,))
        serving.start()
        port = BlockingPort()
        connection = BlockingConnection(Endpoint(listening.getsockname()), port)
        try:
            with port.narrow(0.3), pytest.raises(TimeoutError):
                run_to_end(connection.ask(("GET",)))
        finally:
            over.set()
            serving.join(HANGS)
