"""How the command line shows timers, types and firings: rows for people, objects for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from towpath.apps.timers.listing import TypeView
    from towpath.apps.timers.log import Firing
    from towpath.apps.timers.model import Timer

COLUMNS = ("TIMER", "TYPE", "APP", "STATE", "DUE", "NEXT TRY", ">ATTEMPTS", "REASON")
TYPE_COLUMNS = ("TYPE", "APP", "OWNER", "SERVED BY", ">WAITING", ">RUNNING", ">DEAD", "QUEUE")
LOG_COLUMNS = ("STARTED", "TIMER", "OUTCOME", ">LATE", ">RAN", ">ATTEMPT", "WORKER", "REASON")
_NOBODY = {"no_worker": "no worker", "no_instance": "no instance"}


def timer_fields(timer: Timer) -> dict[str, Any]:
    """Returns a timer for programs, with the field names of the HTTP API, without empty fields."""
    import msgspec  # noqa: PLC0415 -- a help text needs none

    facts = msgspec.structs.asdict(timer)
    facts["state"] = timer.state.value
    facts["delay_time"] = timer.delay_time
    facts["owner"] = timer.owner or None
    return {name: value for name, value in facts.items() if value is not None}


def timer_for_people(timer: Timer) -> dict[str, Any]:
    """Returns a timer for people: params as JSON text, and its time only once."""
    import msgspec  # noqa: PLC0415 -- a help text needs none

    shown = timer_fields(timer)
    shown.pop("delay_time")
    if "params" in shown:
        shown["params"] = msgspec.json.encode(shown["params"]).decode()
    return shown


def fields(thing: Any) -> dict[str, Any]:
    """Returns a type or a firing for programs."""
    import msgspec  # noqa: PLC0415 -- a help text needs none

    return msgspec.structs.asdict(thing)


def timer_row(timer: Timer) -> list[object]:
    reason = None if timer.reason is None else timer.reason[:100]
    return [
        timer.task_id,
        timer.task_type,
        timer.app,
        timer.state,
        timer.due,
        timer.next_try_at,
        timer.attempts,
        reason,
    ]


def type_row(view: TypeView) -> list[object]:
    served = _NOBODY.get(view.status) or view.alive
    return [
        view.task_type,
        view.app,
        view.owner,
        served,
        view.waiting,
        view.running,
        view.dead,
        view.queue,
    ]


def firing_row(firing: Firing) -> list[object]:
    from towpath.clock import seconds  # noqa: PLC0415 -- slow to import

    return [
        firing.started_at,
        firing.task_id,
        firing.outcome,
        seconds(max(firing.late, 0)),
        seconds(firing.ran),
        firing.attempt,
        firing.worker,
        firing.reason,
    ]
