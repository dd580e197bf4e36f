"""Raw calls: changes of a queue through the generic paths of the HTTP API.

The queues of applications take only the raw calls that their application publishes. A key with the
scope `raw` may make all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from towpath.ledger.keys.key import KeyInfo, Scope

SUBMIT_VERBS = ("submit", "set_job", "move", "cancel")
WORK_VERBS = ("claim", "renew", "complete", "fail", "release")
RAW_VERBS = frozenset({*SUBMIT_VERBS, *WORK_VERBS})
"""The raw calls that an application can publish, named as the operations of the HTTP API."""


class RawQueues:
    """The queues of applications, by name or by prefix (`timers.*`), each with the verbs that its
    application publishes.
    """

    def __init__(self, published: Mapping[str, Collection[str]] | None = None) -> None:
        self.published = published or {}
        self._prefixes = tuple(name[:-1] for name in self.published if name.endswith("*"))

    def needs_raw(self, queue: str, verb: str) -> bool:
        """Whether *verb* on *queue* needs the scope `raw`."""
        verbs = self._verbs(queue)
        return verbs is not None and verb not in verbs

    def may_read_content(self, key: KeyInfo, queue: str, owner: str | None) -> bool:
        """Whether *key* may read payload, result and progress of a job of *owner* in *queue*.

        On the queues of applications, this is data that other keys sent. Workers that may claim
        jobs of the queue may read them all.
        """
        if (verbs := self._verbs(queue)) is None or key.owns(owner or ""):
            return True
        return key.may(Scope.RAW) or (key.may(Scope.WORK) and "claim" in verbs)

    def _verbs(self, queue: str) -> Collection[str] | None:
        """Return the verbs that the queue's application publishes; None without an application."""
        if (verbs := self.published.get(queue)) is not None:
            return verbs
        begins = next((each for each in self._prefixes if queue.startswith(each)), None)
        return None if begins is None else self.published[f"{begins}*"]
