"""Webhooks doubled, reordered and lost, then a comparison with GitHub: the same end (I19)."""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.apps.issues.sites import Site
from towpath.apps.issues.life import judged
from towpath.apps.issues.model import Issue, IssueSource, IssueState
from towpath.apps.issues.policy import IssuePolicy
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
    """People at work: some issues, some pull requests, in any order."""
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


def muddled(sent: list[GitHubDelivery], chance: random.Random) -> list[GitHubDelivery]:
    """Some are lost, some come twice, all in any order."""
    kept = [it for it in sent if chance.random() < 0.7]
    twice = [it for it in kept if chance.random() < 0.3]
    mixed = kept + twice
    chance.shuffle(mixed)
    return mixed


def told(issue: Issue, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(issue, name) for name in names}


async def expected(site: Site, repository: str) -> dict[str, Issue]:
    """What GitHub has, judged at once."""
    people = site.at(repository)
    rows: dict[str, Issue] = {}
    for number, there in people.repository.issues.items():
        if there.pull is not None:
            continue
        found = await site.client.issue(repository, number)
        assert found is not None
        rows[found.facts.id] = Issue(
            id=found.facts.id,
            repository=repository,
            number=number,
            source=IssueSource.GITHUB,
            **{name: getattr(found.facts, name) for name in SAID},
        )
    for id, row in rows.items():
        blockers = site.board.policy.blockers(row)
        blocking = [it for it in blockers if rows[it].state is IssueState.OPEN]
        rows[id] = judged(row, site.board.policy, now=1, open_blockers=blocking)
    return rows


@pytest.mark.parametrize("program", range(PROGRAMS))
async def test_the_end_is_what_github_has(site: Site, program: int) -> None:
    chance, repository = random.Random(program), "octo/repo"
    happenings(site.people, chance)
    for it in muddled(site.github.deliveries, chance):
        await site.deliver(it)
    await site.sync()
    wanted, rows = await expected(site, repository), await site.rows()
    # Issues that were closed before we ever heard of them may be unknown.
    for id, issue in wanted.items():
        if id not in rows:
            assert issue.state is IssueState.CLOSED
            continue
        if issue.state is IssueState.CLOSED:  # what else is said of it does not matter now
            assert (rows[id].state, rows[id].withheld) == ("closed", "closed"), id
            continue
        assert told(rows[id], SAID) == told(issue, SAID), id
        assert told(rows[id], DECIDED) == told(issue, DECIDED), id
        assert rows[id].pr_number == newest_pull(site.people, issue.number), id
    await everything_offered_is_handed_out(site, rows)


def newest_pull(people: People, number: int) -> int | None:
    branch = f"issue-{number}"
    pulls = [
        it.number
        for it in people.repository.issues.values()
        if it.pull is not None and it.pull.head == branch and it.closed_at is None
    ]
    return max(pulls, default=None)


async def everything_offered_is_handed_out(site: Site, rows: dict[str, Issue]) -> None:
    """The queue has what the rows say: no more, no less. Reviews wait for their delay."""
    offered = {it.number for it in rows.values() if not it.withheld and it.task_type != "review"}
    taken = set[int]()
    while (task := await site.ask(f"agent-{len(taken)}")) is not None:
        taken.add(task.issue_number)
    assert taken == offered
