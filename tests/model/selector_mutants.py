"""Planted faults of selectors and of workers' limits; the model test must fail with each of
them.
"""

from __future__ import annotations

from tests.model.mutants import Mutant

_FITS = "job.state == 'ready' and job.stored == 'ready' and job.selector == head.selector"
_STAYS = "if job.selector then plan_part(job, SELECTOR .. job.selector, 'ready') end"
_REPLACED = (
    "if job.stored == 'ready' and job.selector then zrem(SELECTOR .. job.selector, job.id) end"
)

FAILURE_MUTANTS = [
    Mutant("a failure is not kept", ("fail", "note_failure(job, reason, traceback)", "")),
    Mutant(
        "a lease that ended is not kept as a failure", ("reap", "note_failure(job, reason)", "")
    ),
    Mutant(
        "only the last failure is kept",
        ("moves", "local kept = job.failures or {}", "local kept = {}"),
    ),
    Mutant("a failure is another worker's", ("moves", "{ now, job.worker,", "{ now, 'w1',")),
]

SELECTOR_MUTANTS = [
    Mutant(
        "a submitted job is not among those of its selector",
        ("accept", "if more.selector then zadd(SELECTOR .. more.selector, score, id) end", ""),
    ),
    Mutant(
        "a job that comes back is not among those of its selector",
        ("plan", _STAYS, f"if job.stored == 'ready' then {_STAYS} end"),
    ),
    Mutant(
        "a claimed job stays among those of its selector",
        ("plan", _STAYS, f"if job.state == 'ready' then {_STAYS} end"),
        ("select", _FITS, "job.state == 'ready' and job.stored == 'ready'"),
    ),
    Mutant(
        "what is replaced stays among those of its selector",
        ("set", _REPLACED, ""),
        ("select", _FITS, "job.state == 'ready' and job.stored == 'ready'"),
    ),
    Mutant(
        "a selector's order goes by the first selector that is named",
        ("select", "(not best or by_place(head, best))", "not best"),
    ),
    Mutant("a selector's jobs in the order of ids", ("select", "tonumber(found[2])", "0")),
    Mutant(
        "of each selector only the first job is seen",
        (
            "select",
            "    advance_head(head)\n    head = best_of",
            "    head.id = nil\n    head = best_of",
        ),
    ),
    Mutant(
        "a claim for selectors takes whatever it made ready",
        ("choose", "named[changed[i].selector or '']", "true"),
    ),
    Mutant(
        "the short way overlooks selectors",
        ("plain_leases", "if selectors or lane ~= ''", "if lane ~= ''"),
    ),
    Mutant(
        "a worker's limit is ignored",
        ("claim", "count = math.min(count, room_of(worker, max_held))", "count = count + 0"),
    ),
    Mutant(
        "a worker's limit counts one too few",
        ("limit", "max_held - redis.call('ZCARD', key)", "max_held + 1 - redis.call('ZCARD', key)"),
    ),
    Mutant(
        "what a worker settled counts towards its limit",
        ("plan", "if job.counted then zrem(HELD .. job.worker, job.id) end", ""),
        ("limit", "if not is_counted(jobs[id], worker) then", "if false then"),
    ),
    Mutant(
        "what was taken from a worker counts towards its limit",
        ("lease", "if job.counted then zrem(HELD .. job.worker, job.id) end", ""),
        ("limit", "if not is_counted(jobs[id], worker) then", "if false then"),
    ),
    Mutant(
        "what this very call reaped counts towards the limit",
        (
            "limit",
            "and job.state ~= 'leased' then room = room + 1",
            "and false then room = room + 1",
        ),
        ("limit", "if not is_counted(jobs[id], worker) then", "if false then"),
    ),
]

_ALWAYS = ("select", "#selectors > FEW and most <= FRONT", "most <= FRONT")
FRONT_FIRST = Mutant("the front of all is looked at however few selectors are named", _ALWAYS)
"""No fault: what only claims that name many do, done by those of the model, which name two."""
FRONT_MUTANTS = [
    Mutant(
        "the first of all is taken whatever its selector",
        _ALWAYS,
        ("select", "if named[job.selector or ''] then", "if true then"),
    ),
    Mutant(
        "of the first of all every second one is seen",
        _ALWAYS,
        ("select", "from, from + STEP - 1)", "from + 1, from + STEP - 1)"),
    ),
]
