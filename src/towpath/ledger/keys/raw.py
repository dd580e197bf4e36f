"""Raw calls: jobs and schedules of a queue, changed over the generic paths of the HTTP API.

The queues of applications take only the raw calls that their application publishes. A key with the
scope `raw` may make all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

SUBMIT_VERBS = ("submit", "set_job", "move", "cancel")
WORK_VERBS = ("claim", "renew", "complete", "fail", "release")
RAW_VERBS = frozenset({*SUBMIT_VERBS, *WORK_VERBS})
"""The raw calls that an application can publish, named as the operations of the HTTP API."""


class RawQueues:
    """The queues of applications, by name or by how names begin (`timers.*`), each with the verbs
    that its application publishes.
    """

    def __init__(self, published: Mapping[str, Collection[str]] | None = None) -> None:
        self.published = published or {}
        self._prefixes = tuple(name[:-1] for name in self.published if name.endswith("*"))

    def needs_raw(self, queue: str, verb: str) -> bool:
        """Whether *verb* on *queue* needs the scope `raw`."""
        verbs = self.published.get(queue)
        if verbs is None:
            begins = next((each for each in self._prefixes if queue.startswith(each)), None)
            if begins is None:
                return False
            verbs = self.published[f"{begins}*"]
        return verb not in verbs
