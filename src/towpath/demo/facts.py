"""What happened in the demo, counted from facts: what was sent, what handlers noted, what is kept.

Nothing here knows what should come out: a job that was lost, done twice or run out of its order is
a number like any other.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

Note = Mapping[str, Any]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One application: what was sent, and what happened to it."""

    application: str
    what: str
    sent: int
    """Accepted by the server."""
    done: int
    doubled: int
    """Done more than once."""
    again: int | None = None
    """Attempts beyond the first: begun again after what began before was killed."""
    misordered: int | None = None
    """Begun before what came before it had ended; a timer, before its time."""
    late: float | None = None
    """Seconds by which the latest one was late."""

    @property
    def lost(self) -> int:
        """Accepted, and never done."""
        return self.sent - self.done

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        return not (self.lost or self.doubled or self.misordered)

    def described(self) -> dict[str, Any]:
        """For programs."""
        return {
            "application": self.application, "what": self.what, "sent": self.sent,
            "done": self.done, "lost": self.lost, "doubled": self.doubled,
            "run_again": self.again, "out_of_order": self.misordered, "late_s": self.late,
        }  # fmt: skip


COLUMNS = (
    "APPLICATION", "WHAT", ">SENT", ">DONE", ">LOST", ">DOUBLED", ">RUN AGAIN", ">OUT OF ORDER",
    ">LATE BY",
)  # fmt: skip


def shown(row: Row) -> list[object]:
    """For people."""
    late = None if row.late is None else f"{row.late * 1000:,.0f} ms"
    return [
        row.application, row.what, row.sent, row.done, row.lost, row.doubled, row.again,
        row.misordered, late,
    ]  # fmt: skip


# ── notes ────────────────────────────────────────────────────────────────────────────────


def notes_in(folder: Path) -> list[Note]:
    """All that handlers have noted, in the order of time. A line that is cut short is left out."""
    found: list[Note] = []
    for file in folder.glob("*.notes"):
        whole, _, _ = file.read_bytes().rpartition(b"\n")
        found += [json.loads(line) for line in whole.splitlines()]
    # Within a millisecond, what ended comes first: in which order they were is not known.
    return sorted(found, key=lambda note: (note["at"], note["what"] != "message.ended"))


def noted(notes: Iterable[Note], what: str) -> list[Note]:
    return [note for note in notes if note["what"] == what]


def held(notes: Iterable[Note]) -> Counter[int]:
    """How many messages each process has begun and not ended."""
    count: Counter[int] = Counter()
    for note in notes:
        if note["what"].startswith("message."):
            count[note["pid"]] += 1 if note["what"] == "message.begun" else -1
    return count


# ── counting ─────────────────────────────────────────────────────────────────────────────


def messages(
    notes: Iterable[Note], sent: Iterable[tuple[str, int]], answered: Iterable[tuple[str, int]],
    *, completed: int,
) -> Row:  # fmt: skip
    """*sent* and *answered* are users with the numbers of their messages; *completed* is how many
    completions the store has accepted.
    """
    notes, sent, answered = list(notes), set(sent), set(answered)
    ended = {(note["user"], note["number"]) for note in noted(notes, "message.ended")}
    done = ended & answered & sent
    begun = noted(notes, "message.begun")
    return Row(
        application="messages",
        what=f"messages of {len({user for user, _ in sent})} users",
        sent=len(sent),
        done=len(done),
        doubled=completed - len(answered),
        again=len(begun) - len({(note["user"], note["number"]) for note in begun}),
        misordered=_misordered(notes),
    )


def _misordered(notes: Iterable[Note]) -> int:
    """Messages that began before the one before had ended, or after a later one of their user.

    An attempt with a lower token than its user's last one counts for nothing: it was given up, and
    whatever it says is refused.
    """
    ended: defaultdict[str, set[int]] = defaultdict(set)
    latest: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    wrong = 0
    for note in notes:
        user, number, token = note.get("user", ""), note.get("number", 0), note.get("token", 0)
        if note["what"] == "message.ended":
            ended[user].add(number)
        elif note["what"] == "message.begun" and token >= tokens[user]:
            before = number > 1 and number - 1 not in ended[user]
            wrong += bool(before or number < latest[user])
            latest[user], tokens[user] = max(latest[user], number), token
    return wrong


def timers(notes: Iterable[Note], sent: Iterable[int], *, completed: int) -> Row:
    """*sent* are the numbers of the timers; *completed* as above."""
    sent, fired = set(sent), noted(notes, "timer")
    numbers = {note["number"] for note in fired} & sent
    late = [note["at"] - note["due"] for note in fired]
    return Row(
        application="timers",
        what="reminders, each at its time",
        sent=len(sent),
        done=len(numbers),
        doubled=max(completed - len(numbers), 0),
        again=len(fired) - len(numbers),
        misordered=sum(delay < 0 for delay in late),
        late=max(late) / 1000 if late else None,
    )


def reviews(sent: Iterable[str], completed: Iterable[str], posted: Iterable[str]) -> Row:
    """*sent* are the commits that webhooks told of, *completed* those with a review, *posted* those
    of the reviews that GitHub has, one for each that it has.
    """
    sent, times = set(sent), Counter(posted)
    return Row(
        application="reviews",
        what="webhooks of pull requests, some sent twice",
        sent=len(sent),
        done=len(sent & set(completed) & times.keys()),
        doubled=sum(times.values()) - len(times),
    )


def uploads(sent: Iterable[str], stored: Iterable[str], whole: Iterable[str]) -> Row:
    """Names of files: what was sent, what there are documents of, what is there as it was sent."""
    sent, stored = set(sent), list(stored)
    return Row(
        application="uploads",
        what="files in chunks of 1 MiB",
        sent=len(sent),
        done=len(sent & set(whole)),
        doubled=len(stored) - len(set(stored)),
    )


def issues(sent: Iterable[int], completed: Iterable[int], *, agents: int, taken: int) -> Row:
    """Numbers of issues, one of *completed* for each completion that was accepted; *taken* is how
    often an issue was handed out.
    """
    sent, times = set(sent), Counter(completed)
    return Row(
        application="issues",
        what=f"handed out to {agents} agents",
        sent=len(sent),
        done=len(sent & times.keys()),
        doubled=sum(times.values()) - len(times),
        again=taken - len(times),
    )
