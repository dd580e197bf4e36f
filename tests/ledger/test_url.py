"""URLs of databases: every usual spelling, and no part of an invalid one in the error."""

import pytest

from towpath.errors import InvalidOption
from towpath.ledger.ledger import Ledger

SECRET = "hunter2-canary"  # noqa: S105 -- it is one that must not be seen


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///towpath.db", "sqlite:///towpath.db"),
        ("sqlite:////var/lib/towpath/ledger.db", "sqlite:////var/lib/towpath/ledger.db"),
        ("sqlite+aiosqlite:///a b.db", "sqlite:///a b.db"),
        ("postgresql://anna@db:5433/jobs", "postgresql://db:5433/jobs"),
        (f"postgres://anna:{SECRET}@db/jobs?sslmode=require", "postgresql://db/jobs"),
        (f"postgresql+asyncpg://anna:{SECRET}@[::1]:5432/jobs", "postgresql://[::1]:5432/jobs"),
        ("postgresql://anna@/jobs?host=/run/postgresql", "postgresql:///jobs"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    ledger = Ledger(url)
    assert ledger.shown == shown
    assert repr(ledger) == f"Ledger({shown})"


@pytest.mark.parametrize(
    "url",
    [
        "",
        SECRET,
        f"mysql://anna:{SECRET}@db/jobs",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        f"sqlite:///file.db?password={SECRET}",
        "sqlite:///directory/",
        f"postgresql://anna:{SECRET}@/jobs",
        f"postgresql://anna:{SECRET}@db",
        f"postgresql://anna:{SECRET}@db:{SECRET}/jobs",
        f"postgresql://anna:{SECRET}#x@db/jobs",
        f"postgresql://anna:{SECRET}@[::1/jobs",
        f"postgresql+psycopg://anna:{SECRET}@db/jobs",
    ],
)
def test_an_invalid_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        Ledger(url)
    assert SECRET not in f"{refusal.value!r} {refusal.value} {refusal.value.__cause__}"


async def test_a_url_that_the_driver_refuses_is_not_repeated() -> None:
    url = f"postgresql://anna:{SECRET}@db/jobs?sslmode={SECRET}"
    async with Ledger(url) as ledger:
        with pytest.raises(InvalidOption) as refusal:
            await ledger.keys.list()
    assert SECRET not in f"{refusal.value!r} {refusal.value.__cause__!r}"
