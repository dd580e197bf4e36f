"""The ledger of an app: opened with it, and shared by its handlers and workers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from towpath.engine.engine import Engine
from towpath.errors import EngineClosed
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.worker.recorded import Recorder


class Recording:
    """A ledger and the relay that keeps Redis filled from it.

    A URL, and a Ledger that nobody has entered, are opened and closed with the app; a Ledger that
    the user has entered stays the user's.
    """

    def __init__(
        self, ledger: Ledger | str, connect: Callable[[], Engine], check: Callable[[str], None]
    ) -> None:
        self._given, self._connect, self._check = ledger, connect, check
        self._closed: tuple[str, Ledger] | None = None
        self._ledger: Ledger | None = None
        self._life: AsyncExitStack | None = None

    async def enter(self) -> None:
        """Once for all who share it. Raises LedgerNotInstalled, LedgerOutdated, InvalidOption.

        A database that is away is no reason not to begin: other queues have no use for it.
        """
        from towpath.ledger.errors import LedgerUnreachable  # noqa: PLC0415 -- beside the ledger
        from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- needs the libraries of an extra
        from towpath.ledger.relay import Relay  # noqa: PLC0415 -- the same

        life = AsyncExitStack()
        ledger = Ledger(self._given) if isinstance(self._given, str) else self._given
        if not ledger.entered:
            await life.enter_async_context(ledger)
        try:
            with suppress(LedgerUnreachable):
                await ledger.read(lambda _: None)  # the first use sees whether the schema fits
            ledger.jobs.checks.append(self._check)
            life.callback(ledger.jobs.checks.remove, self._check)
            if ledger.jobs.fastpath is None:  # a server that the app runs in has a relay already
                await life.enter_async_context(Relay(ledger, self._connect, log=Log()))
        except BaseException:
            await life.aclose()
            raise
        self._ledger, self._life = ledger, life

    @contextmanager
    def kept_in(self, ledger: Ledger | str) -> Generator[None]:
        """Another ledger until the end of the block, as if nobody had entered: for tests."""
        before = self._given, self._ledger, self._life
        self._given, self._ledger, self._life = ledger, None, None
        try:
            yield
        finally:
            self._given, self._ledger, self._life = before

    @property
    def place(self) -> str | None:
        """The URL it was given; None for a Ledger of the user's."""
        return self._given if isinstance(self._given, str) else None

    async def leave(self) -> None:
        life, self._life, self._ledger = self._life, None, None
        if life is not None:
            await life.aclose()

    @property
    def ledger(self) -> Ledger:
        """The ledger. Raises EngineClosed while the app is not entered."""
        if self._ledger is None:
            raise EngineClosed("the app is not connected: use `async with app`")
        return self._ledger

    @property
    def at_hand(self) -> Ledger:
        """The ledger, entered or not: for those who bring a connection of their own."""
        from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- as above

        if self._ledger is not None:
            return self._ledger
        if not isinstance(self._given, str):
            return self._given
        if self._closed is None or self._closed[0] != self._given:
            self._closed = self._given, Ledger(self._given)
        return self._closed[1]

    @property
    def recorder(self) -> Recorder:
        from towpath.ledger.recorder import LedgerRecorder  # noqa: PLC0415 -- as above

        return LedgerRecorder(self.ledger.jobs)
