"""Opens engines for threads without an event loop, for tests."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from towpath import Engine
from towpath.engine.blocking import run_to_end


@contextmanager
def engine_here(url: str, **options: Any) -> Generator[Engine]:
    """An engine for threads without an event loop; it is closed at the end of the block."""
    engine = Engine(url, **options).in_threads()
    run_to_end(engine.__aenter__())
    try:
        yield engine
    finally:
        engine.close_here()
