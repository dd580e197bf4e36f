"""Counts the results of the demo: from what was sent, the notes of handlers, and what is stored.

The counts assume no result: jobs that were lost, done twice or run out of order are counted like
any others.
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
    """The results of one application."""

    application: str
    what: str
    sent: int
    """Accepted by the server."""
    done: int
    doubled: int
    """How many of these were done more than once."""
    again: int | None = None
    """Attempts beyond the first, begun because the one before was killed."""
    misordered: int | None = None
    """Begun before the one before it had ended; for timers, fired before their time."""
    late: float | None = None
    """Seconds by which the latest one was late."""

    @property
    def lost(self) -> int:
        """The number that were accepted, but not done."""
        return self.sent - self.done

    @property
    def kept(self) -> bool:
        """Whether all guarantees were kept: none lost, none doubled, none out of order."""
        return not (self.lost or self.doubled or self.misordered)

    def as_json(self) -> dict[str, Any]:
        """The row as JSON fields."""
        return {
            "application": self.application, "what": self.what, "sent": self.sent,
            "done": self.done, "lost": self.lost, "doubled": self.doubled,
            "run_again": self.again, "out_of_order": self.misordered, "late_s": self.late,
        }  # fmt: skip


COLUMNS = (
    "APPLICATION", "WHAT", ">SENT", ">DONE", ">LOST", ">DOUBLED", ">RUN AGAIN", ">OUT OF ORDER",
    ">LATE BY",
)  # fmt: skip


def cells(row: Row) -> list[object]:
    """The cells of the row for the table."""
    late = None if row.late is None else f"{row.late * 1000:,.0f} ms"
    return [
        row.application, row.what, row.sent, row.done, row.lost, row.doubled, row.again,
        row.misordered, late,
    ]  # fmt: skip


# ── notes ────────────────────────────────────────────────────────────────────────────────


def read_notes(folder: Path) -> list[Note]:
    """All notes of handlers, ordered by time. Leaves out a line that is cut short."""
    found: list[Note] = []
    for file in folder.glob("*.notes"):
        whole, _, _ = file.read_bytes().rpartition(b"\n")
        found += [json.loads(line) for line in whole.splitlines()]
    # Within a millisecond, ends come first, because the real order is not known.
    return sorted(found, key=lambda note: (note["at"], note["what"] != "message.ended"))


def notes_of(notes: Iterable[Note], what: str) -> list[Note]:
    return [note for note in notes if note["what"] == what]


def count_held_messages(notes: Iterable[Note]) -> Counter[int]:
    """The number of messages that each process has begun and not ended."""
    count: Counter[int] = Counter()
    for note in notes:
        if note["what"].startswith("message."):
            count[note["pid"]] += 1 if note["what"] == "message.begun" else -1
    return count


# ── counting ─────────────────────────────────────────────────────────────────────────────


def count_messages(
    notes: Iterable[Note], sent: Iterable[tuple[str, int]], answered: Iterable[tuple[str, int]],
    *, completed: int,
) -> Row:  # fmt: skip
    """The row of messages. *sent* and *answered* are users with the numbers of their messages;
    *completed* is the number of completions that Redis has accepted.
    """
    notes, sent, answered = list(notes), set(sent), set(answered)
    ended = {(note["user"], note["number"]) for note in notes_of(notes, "message.ended")}
    done = ended & answered & sent
    begun = notes_of(notes, "message.begun")
    return Row(
        application="messages",
        what=f"messages of {len({user for user, _ in sent})} users",
        sent=len(sent),
        done=len(done),
        doubled=completed - len(answered),
        again=len(begun) - len({(note["user"], note["number"]) for note in begun}),
        misordered=_count_misordered(notes),
    )


def _count_misordered(notes: Iterable[Note]) -> int:
    """Counts messages that began before the one before had ended, or after a later one of the user.

    Ignores an attempt with a lower fencing token than the user's last one: it lost its lease, so
    its result is refused.
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


def count_timers(notes: Iterable[Note], sent: Iterable[int], *, completed: int) -> Row:
    """The row of timers. *sent* are their numbers; *completed* is as for `messages`."""
    sent, fired = set(sent), notes_of(notes, "timer")
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


def count_reviews(sent: Iterable[str], completed: Iterable[str], posted: Iterable[str]) -> Row:
    """The row of reviews. *sent* are the commits in webhooks, *completed* the commits with a
    review, *posted* the commit of each review on GitHub.
    """
    sent, times = set(sent), Counter(posted)
    return Row(
        application="reviews",
        what="webhooks of pull requests, some sent twice",
        sent=len(sent),
        done=len(sent & set(completed) & times.keys()),
        doubled=sum(times.values()) - len(times),
    )


def count_uploads(sent: Iterable[str], stored: Iterable[str], intact: Iterable[str]) -> Row:
    """The row of uploads. All are names of files: *sent*, *stored* with a document, and *intact*,
    that is, stored with the content that was sent.
    """
    sent, stored = set(sent), list(stored)
    return Row(
        application="uploads",
        what="files in chunks of 1 MiB",
        sent=len(sent),
        done=len(sent & set(intact)),
        doubled=len(stored) - len(set(stored)),
    )


def count_issues(sent: Iterable[int], completed: Iterable[int], *, agents: int, taken: int) -> Row:
    """The row of issues. *sent* are their numbers, *completed* has one for each accepted
    completion, and *taken* is how often an issue was handed out.
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
