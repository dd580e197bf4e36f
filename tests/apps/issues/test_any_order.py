"""Doubled, reordered and lost webhooks, then a sync: the rows always match GitHub (I19)."""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.apps.issues.synced import SyncedIssueServices
from towpath.apps.issues.model import Issue, IssueSource, IssueState
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.transitions import judge
from towpath.testing.github.hooks import GitHubDelivery
from towpath.testing.github.people import People

PROGRAMS = int(os.environ.get("TOWPATH_ISSUE_PROGRAMS", "12"))
STEPS = 14
LABELS = ["P0", "P1", "P4", "epic", "needs-review", "role:ops", "in-progress", "changes-requested"]
DECIDED = ("task_type", "role", "priority", "withheld")
SAID = ("state", "title", "body", "labels", "assignees")


@pytest.fixture
def policy() -> IssuePolicy:
    return IssuePolicy(blocked_by=True)


def happenings(people: People, chance: random.Random) -> None:
    """Returns what people do: steps on issues and pull requests, in random order."""
    numbers = [people.open(f"Issue {n}", labels=chance.sample(LABELS, 1)).number for n in range(3)]
    pulls: list[int] = []
    doings: list[Callable[[int], object]] = [
        lambda n: people.label(n, chance.choice(LABELS)),
        lambda n: people.unlabel(n, chance.choice(LABELS)),
        people.close,
        people.reopen,
        lambda n: people.assign(n, "zoe"),
        lambda n: people.unassign(n, "zoe"),
        lambda n: people.edit(n, body=f"Blocked by #{chance.choice(numbers)}"),
        lambda n: people.edit(n, title=f"Title {chance.random()}"),
        lambda n: people.comment(n, "Me too."),
        lambda n: pulls.append(people.open_pull("A change", head=f"issue-{n}").number),
        lambda _: pulls and people.push(chance.choice(pulls)),
        lambda _: pulls and people.review(chance.choice(pulls), "COMMENTED"),
        lambda _: pulls and people.close(chance.choice(pulls)),
    ]
    for _ in range(STEPS):
        chance.choice(doings)(chance.choice(numbers))


def reordered(sent: list[GitHubDelivery], chance: random.Random) -> list[GitHubDelivery]:
    """Returns the webhooks in random order, some of them twice, without some of them."""
    kept = [delivery for delivery in sent if chance.random() < 0.7]
    twice = [delivery for delivery in kept if chance.random() < 0.3]
    mixed = kept + twice
    chance.shuffle(mixed)
    return mixed


def told(issue: Issue, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(issue, name) for name in names}


async def expected(synced: SyncedIssueServices, repository: str) -> dict[str, Issue]:
    """Returns the rows that GitHub's present state and the policy lead to."""
    people = synced.at(repository)
    rows: dict[str, Issue] = {}
    for number, there in people.repository.issues.items():
        if there.pull is not None:
            continue
        found = await synced.client.issue(repository, number)
        assert found is not None
        rows[found.id] = Issue(
            id=found.id,
            repository=repository,
            number=number,
            source=IssueSource.GITHUB,
            **{name: getattr(found, name) for name in SAID},
        )
    for id, row in rows.items():
        blockers = synced.store.policy.blockers(row)
        blocking = [blocker for blocker in blockers if rows[blocker].state is IssueState.OPEN]
        rows[id] = judge(row, synced.store.policy, now=1, open_blockers=blocking)
    return rows


@pytest.mark.parametrize("program", range(PROGRAMS))
async def test_webhooks_in_any_order_and_a_sync_end_with_the_state_of_github(
    synced: SyncedIssueServices, program: int
) -> None:
    chance, repository = random.Random(program), "octo/repo"
    happenings(synced.people, chance)
    for delivery in reordered(synced.github.deliveries, chance):
        await synced.deliver(delivery)
    await synced.sync()
    wanted, rows = await expected(synced, repository), await synced.rows()
    # Issues that were closed before the service heard of them may be unknown.
    for id, issue in wanted.items():
        if id not in rows:
            assert issue.state is IssueState.CLOSED
            continue
        if issue.state is IssueState.CLOSED:  # the other fields do not matter now
            assert (rows[id].state, rows[id].withheld) == ("closed", "closed"), id
            continue
        assert told(rows[id], SAID) == told(issue, SAID), id
        assert told(rows[id], DECIDED) == told(issue, DECIDED), id
        assert rows[id].pr_number == newest_pull(synced.people, issue.number), id
    await everything_offered_is_handed_out(synced, rows)


def newest_pull(people: People, number: int) -> int | None:
    branch = f"issue-{number}"
    pulls = [
        issue.number
        for issue in people.repository.issues.values()
        if issue.pull is not None and issue.pull.head == branch and issue.closed_at is None
    ]
    return max(pulls, default=None)


async def everything_offered_is_handed_out(
    synced: SyncedIssueServices, rows: dict[str, Issue]
) -> None:
    """Check that the queue hands out exactly what the rows offer. Reviews wait for their delay."""
    offered = {
        row.number for row in rows.values() if not row.withheld and row.task_type != "review"
    }
    taken = set[int]()
    while (task := await synced.request(f"agent-{len(taken)}")) is not None:
        taken.add(task.issue_number)
    assert taken == offered
