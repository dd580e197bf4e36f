"""Every script gives the same results on the newest Valkey, on the oldest Redis and on a
cluster.
"""

import pytest

from tests.amounts import deployments
from tests.faults.filled_queue import filled_queue_on
from tests.faults.queue_contents import QueueContents, contents_of, with_payloads
from tests.faults.script_calls import CASES, Case
from tests.spec.deployment import Deployment
from towpath.embedded import EmbeddedServer

pytestmark = deployments


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_call_gives_the_same_results_as_on_valkey(
    case: Case, deployment: Deployment, server: EmbeddedServer
) -> None:
    found = await called(case, deployment.url)
    server.ask("FLUSHALL")
    assert found == await called(case, server.url)


async def called(case: Case, url: str) -> QueueContents:
    async with filled_queue_on(url, case.policy) as filled:
        await case.call(filled)
        contents = await contents_of(filled.engine, filled.queue)
        return await with_payloads(filled.engine, contents)
