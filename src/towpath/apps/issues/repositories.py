"""Repositories that are renamed, transferred or deleted, and what becomes of their issues."""

from __future__ import annotations

from towpath.apps.issues import tables
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.log_events import REPOSITORY_MOVED, REPOSITORY_TROUBLE
from towpath.apps.issues.model import issue_id
from towpath.apps.issues.tables import changes
from towpath.apps.issues.transitions import mark_gone, unchanged

_BATCH = 200
_GONE = "the repository does not exist, or the token can't see it"


class Repositories:
    """Changes all issues of a repository."""

    def __init__(self, store: IssueStore) -> None:
        self._store = store

    async def mark_gone(self, repository: str) -> list[str]:
        """Hand out no issue of *repository* any more, and ask holders to stop. Returns the ids.

        If the repository comes back, a comparison with GitHub finds its issues open.
        """
        store, ids = self._store, list[str]()
        while some := await store.ledger.read(tables.issues_of_repository(repository, _BATCH)):
            for issue in some:
                await store.change(issue.id, mark_gone)
                ids.append(issue.id)
        await store.ledger.decide(changes.set_repository(repository, trouble=_GONE))
        fields = {"repository": repository, "error": "RepositoryGone"}
        store.log.emit(REPOSITORY_TROUBLE, **fields, reason=_GONE)
        return ids

    async def rename(self, old: str, new: str) -> list[str]:
        """Move the issues of *old* to *new*. Tasks keep their ids and holders. Returns the ids."""
        store, ids = self._store, list[str]()
        if old.lower() == new.lower():
            return ids
        while some := await store.ledger.read(
            tables.issues_of_repository(old, _BATCH, any_state=True)
        ):
            for issue in some:
                other = await store.ledger.decide(changes.move_issue(issue.id, new))
                await store.withdraw(other)
                moved = (await store.change(issue_id(new, issue.number), unchanged)).after
                ids += [moved.id] if moved is not None else []
        await store.ledger.decide(changes.rename_repository(old, new))
        if ids:
            store.log.emit(REPOSITORY_MOVED, repository=old, name=new)
        return ids
