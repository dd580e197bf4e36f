"""What all private servers and groups of them have in common: `with` and `async with`."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Running(ABC):
    """Something that runs between `start` and `stop`; both may be called twice without harm."""

    @abstractmethod
    def start(self) -> Self:
        """Return once it is ready for work."""

    @abstractmethod
    def stop(self) -> None:
        """Return once it has ended."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)
