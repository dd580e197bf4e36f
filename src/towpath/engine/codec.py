"""The wire format of scripts: their arguments (MessagePack), and what their answers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from random import random
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] -- it ships none
import msgspec

from towpath.clock import Duration, DurationLike, duration_ms, instant_ms, milliseconds
from towpath.engine.check import LARGEST_NOTE, check_size, shorten_reason, traceback_end
from towpath.engine.model import (
    Bury,
    Complete,
    Exchanged,
    Fail,
    JobRef,
    Lease,
    Outcome,
    Placed,
    Release,
    Renew,
    Settlement,
    Submitted,
    read_attributes,
)
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import (
    InvalidOption,
    JobCancelled,
    JobDead,
    JobDone,
    JobHasRecord,
    JobNotDead,
    JobNotFound,
    JobNotWaiting,
    JobOpen,
    LeaseLost,
    NotOwned,
    PayloadTooLarge,
    QueueFull,
    ScriptDefect,
    TowpathError,
)
from towpath.ids import JobId, QueueName

pack = cast("Callable[[Any], bytes]", partial(msgpack.packb, use_bin_type=False))  # pyright: ignore[reportUnknownMemberType]
"""Packs a value for a script. Bytes are packed as text, because Lua's decoder knows no binary type;
a Lua string holds any bytes."""
unpack_raw = cast("Callable[[bytes], Any]", partial(msgpack.unpackb, raw=True))  # pyright: ignore[reportUnknownMemberType]
"""Unpacks a value that a script packed; its texts come as bytes."""

BY_DELAY = -1
"""Stands in place of a due time when a delay is given."""
STATES = {state.value.encode(): state for state in State}
_SAME = {b"same": True, b"differs": False, b"unknown": None}


# ── to the scripts ───────────────────────────────────────────────────────────────────────


def due_or_delay(due: datetime | None, delay: DurationLike | None) -> tuple[int, int]:
    """The instant in ms, or BY_DELAY and the delay. Raises InvalidOption unless one of both is
    given.
    """
    if due is not None and delay is None:
        return instant_ms("due", due), 0
    if delay is not None and due is None:
        return BY_DELAY, duration_ms("delay", delay)
    raise InvalidOption("due", due, rule="pass either a delay or a due time")


_VERBS = {Complete: "complete", Fail: "fail", Bury: "fail", Release: "release", Renew: "renew"}


def verb_of(settlement: Settlement) -> str:
    """The script that runs a settlement by itself."""
    return _VERBS[type(settlement)]


def settlement_item(settlement: Settlement, options: QueueOptions) -> list[Any]:
    """A settlement as `exchange` takes it: the verb and its arguments."""
    named = [verb_of(settlement), settlement.lease.job.id, settlement.lease.token]
    match settlement:
        case Complete():
            return [*named, check_size("result", settlement.result, options.max_payload)]
        case Fail():
            failed = [*named, fail_delay(settlement, options), *_error_fields(settlement)]
            return [*failed, 1] if settlement.keep_turn else failed
        case Bury():
            return [*named, NO_OTHER_ATTEMPT, *_error_fields(settlement)]
        case Release():
            released = [*named, duration_ms("delay", settlement.delay)]
            if not settlement.unhandled:
                return released
            released.append(shorten_reason(settlement.unhandled))
            return [*released, 1] if settlement.anew else released
        case Renew():
            return [*named, lease_ms(settlement.ttl)]


def _error_fields(settlement: Fail | Bury) -> list[str]:
    return [shorten_reason(settlement.reason), traceback_end(settlement.traceback)]


NO_OTHER_ATTEMPT = -1


def fail_delay(fail: Fail, options: QueueOptions) -> int:
    """How long until the next attempt, in ms: as asked for, or by the job's retry policy."""
    delay = fail.delay
    if delay is None:
        delay = (fail.lease.retry or options.retry).delay(fail.lease.attempt, random())  # noqa: S311 -- jitter
    return NO_OTHER_ATTEMPT if delay is None else duration_ms("delay", delay)


def lease_ms(lease: Any) -> int:
    return duration_ms("lease", lease, least=milliseconds(1))


def note_bytes(note: bytes) -> bytes:
    return check_size("progress", note, LARGEST_NOTE)


# ── from the scripts ─────────────────────────────────────────────────────────────────────


def decode_submitted(queue: QueueName, id: JobId, answer: Any) -> Submitted | TowpathError:
    """The answer to one job of a submit."""
    job = JobRef(queue, id)
    if type(answer) is bytes:
        return Submitted(job, STATES[answer])
    match answer:
        case [b"existed", state, payload]:
            return Submitted(job, STATES[state], True, _SAME[payload])
        case _:
            return _submit_refusal(queue, answer)


def _submit_refusal(queue: QueueName, answer: Any) -> TowpathError:
    match answer:
        case [b"QUEUE_FULL", length]:
            return QueueFull(queue, length)
        case [b"PAYLOAD_TOO_LARGE", size, limit]:
            return PayloadTooLarge("payload", size, limit=limit)
        case _:
            raise ScriptDefect(f"a job was answered with {answer!r}")


def decode_placed(queue: QueueName, id: JobId, answer: Any) -> Placed | TowpathError:
    """The answer to one job of a set."""
    match answer:
        case [(b"new" | b"replaced") as word, state]:
            return Placed(JobRef(queue, id), STATES[state], replaced=word == b"replaced")
        case [b"JOB_NOT_WAITING" | b"JOB_HAS_RECORD" | b"JOB_NOT_OWNED", *_]:
            return decode_refusal(JobRef(queue, id), answer)
        case _:
            return _submit_refusal(queue, answer)


def decode_moved(job: JobRef, answer: Any) -> State | TowpathError:
    """The answer to one job of a move."""
    return STATES[answer] if type(answer) is bytes else decode_refusal(job, answer)


def decode_cancelled(job: JobRef, answer: Any) -> State | TowpathError:
    """The answer to one job of a cancel: LEASED while its worker is asked to stop."""
    if type(answer) is bytes:
        return STATES[answer]
    return State.LEASED if answer[0] == b"CANCEL_REQUESTED" else decode_refusal(job, answer)


def too_large(size: int, limit: int) -> list[Any]:
    """What a submit answers for a payload beyond the limit, made here without asking Redis."""
    return [b"PAYLOAD_TOO_LARGE", size, limit]


def decode_lease(queue: QueueName, worker: str, fields: list[Any]) -> Lease:
    """A lease as `claim` answers it: six fields, then further ones by name if they are not
    default.
    """
    id, payload, token, attempt, expires, submitted, *more = fields
    job = JobRef(queue, id.decode())
    if not more:
        return Lease(job, payload, token, attempt, worker, expires, submitted, token // 1000)
    named = pairs(more)
    return Lease(
        job,
        payload,
        token,
        attempt,
        worker,
        expires,
        submitted,
        # A token is the time of its claim in µs; where it is not, the job has a `claimed` field.
        int(named.get("claimed", token // 1000)),
        due_ms=int(named.get("asked_due", named.get("due", 0))),
        next_try_ms=int(named.get("due", 0)) if "asked_due" in named else 0,
        reason=named["reason"].decode(errors="replace") if "reason" in named else None,
        record=named["record"].decode() if "record" in named else None,
        deaths=int(named.get("deaths", 0)),
        is_excused="excused" in named,
        unhandled_since_ms=int(named.get("unhandled_since", 0)),
        unhandled=named["unhandled"].decode(errors="replace") if "unhandled" in named else "",
        **read_attributes(named),
    )


def decode_exchanged(
    queue: QueueName,
    worker: str,
    settlements: list[Settlement],
    answer: list[Any],
    *,
    due_in: Duration | None,
) -> Exchanged:
    outcomes = [
        decode_outcome(settlement.lease, word)
        for settlement, word in zip(settlements, answer[0], strict=True)
    ]
    leases, _, left, now = answer[1:]
    return Exchanged(
        outcomes,
        [decode_lease(queue, worker, fields) for fields in leases],
        left=left,
        due_in=due_in,
        now_ms=now,
    )


def decode_outcome(lease: Lease, answer: Any) -> Outcome:
    """What became of one settled lease: a state, the lease renewed, or the refusal."""
    match answer:
        case bytes() if answer in STATES:
            return STATES[answer]
        case [b"leased", int(expires)]:
            return msgspec.structs.replace(lease, expires_ms=expires)
        case [b"CANCEL_REQUESTED", int(expires)]:
            return msgspec.structs.replace(lease, expires_ms=expires, cancel_requested=True)
        case _:
            return decode_refusal(lease.job, answer, held=lease.token)


_REFUSALS: dict[bytes, Callable[..., TowpathError]] = {
    b"JOB_NOT_FOUND": JobNotFound,
    b"JOB_DONE": JobDone,
    b"JOB_DEAD": JobDead,
    b"JOB_CANCELLED": JobCancelled,
    b"JOB_NOT_DEAD": JobNotDead,
    b"JOB_NOT_WAITING": JobNotWaiting,
    b"JOB_OPEN": JobOpen,
    b"JOB_HAS_RECORD": JobHasRecord,
    b"JOB_NOT_OWNED": NotOwned,
}

REFUSAL_WORDS = frozenset(word.decode() for word in _REFUSALS) | {
    "LEASE_LOST",
    "QUEUE_FULL",
    "PAYLOAD_TOO_LARGE",
    "LANE_NOT_PARKED",
    "FIRING_TAKEN",
    "NOT_YET",
    "SCHEDULE_NOT_FOUND",
    "SCHEDULE_CHANGED",
    "SCHEDULE_DECLARED",
    "SCHEDULES_FULL",
}
"""Every word with which a script refuses a job; a test compares them with the scripts' headers."""


def decode_refusal(job: JobRef, answer: Any, *, held: int = 0) -> TowpathError:
    """The error for a script's word. An unknown word is a defect."""
    match answer:
        case [b"LEASE_LOST", token, worker, state]:
            return LeaseLost(
                job, held=held, current=int(token), worker=worker.decode(), state=state.decode()
            )
        case [word, *details] if word in _REFUSALS:
            return _REFUSALS[word](job, *(detail.decode() for detail in details))
        case _:
            raise ScriptDefect(f"job {job}: a script answered {answer!r}")


def pairs(flat: Iterable[Any]) -> dict[str, Any]:
    """Redis's flat name, value, name, value as a dictionary."""
    parts = iter(flat)
    return {name.decode(): value for name, value in zip(parts, parts, strict=True)}
