"""Engines that are driven in the caller's thread, for tests."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from towpath import Engine
from towpath.engine.blocking import run_to_end


@contextmanager
def engine_here(url: str, **options: Any) -> Generator[Engine]:
    """An engine without an event loop, from its beginning to its end."""
    engine = Engine(url, **options).in_threads()
    run_to_end(engine.__aenter__())
    try:
        yield engine
    finally:
        engine.close_here()
