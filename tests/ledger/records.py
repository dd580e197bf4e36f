"""Records and leases for them, as tests need them."""

from towpath.clock import seconds
from towpath.engine.channel import Limits
from towpath.engine.model import Lease, job_ref
from towpath.ids import Token
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import Record

REVIEWS = "reviews"
SHORT = Limits(answer=seconds(0.5), give_up=seconds(1))
"""For an engine that is to know soon that its server is away."""


def lease(record: Record, token: int) -> Lease:
    return Lease(
        job=job_ref(record.queue, record.job),
        payload=b"",
        token=Token(token),
        attempt=1,
        worker="w1",
        expires_ms=0,
        submitted_ms=0,
    )


async def made(ledger: Ledger, id: str = "a", **options: object) -> Record:
    return (await ledger.jobs.submit(REVIEWS, b'"x"', id=id, **options)).record  # type: ignore[arg-type]
