"""Repositories that are renamed, transferred or deleted, and what becomes of their issues."""

from __future__ import annotations

from msgspec.structs import replace

from towpath.apps.issues import tables
from towpath.apps.issues.board import Board
from towpath.apps.issues.model import Issue, IssueState, issue_id
from towpath.apps.issues.tables import changes
from towpath.telemetry.events import REPOSITORY_MOVED, REPOSITORY_TROUBLE

_BATCH = 200
_GONE = "the repository does not exist, or the token can't see it"


class Moving:
    """Changes all issues of a repository."""

    def __init__(self, board: Board) -> None:
        self._board = board

    async def gone(self, repository: str) -> list[str]:
        """Hand out no issue of *repository* any more, and ask holders to stop. Returns the ids.

        If the repository comes back, a comparison with GitHub finds its issues open.
        """
        board, ids = self._board, list[str]()
        while some := await board.ledger.read(tables.of_repository(repository, _BATCH)):
            for issue in some:
                await board.revise(issue.id, _mark_gone)
                ids.append(issue.id)
        await board.ledger.decide(changes.noted(repository, trouble=_GONE))
        fields = {"repository": repository, "error": "RepositoryGone"}
        board.log.emit(REPOSITORY_TROUBLE, **fields, reason=_GONE)
        return ids

    async def renamed(self, old: str, new: str) -> list[str]:
        """Move the issues of *old* to *new*. Tasks keep their ids and holders. Returns the ids."""
        board, ids = self._board, list[str]()
        if old.lower() == new.lower():
            return ids
        while some := await board.ledger.read(tables.of_repository(old, _BATCH, any_state=True)):
            for issue in some:
                other = await board.ledger.decide(changes.moved(issue, new))
                await board.withdraw(other)
                revised = await board.revise(issue_id(new, issue.number), lambda current: current)
                ids += [revised.after.id] if revised.after else []
        await board.ledger.decide(changes.repository_renamed(old, new))
        if ids:
            board.log.emit(REPOSITORY_MOVED, repository=old, name=new)
        return ids


def _mark_gone(issue: Issue | None) -> Issue | None:
    return issue and replace(issue, state=IssueState.GONE)
