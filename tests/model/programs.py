"""The steps of random programs: few names and few times, so that steps often concern the same job.

A step is a verb and its arguments. Leases and jobs are named by a number: 0 is the newest lease
that is held, -1 the newest that is no longer held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.model.values import NO_OTHER_ATTEMPT

MINUTE = 60_000
HOUR = 60 * MINUTE

# Redis expires keys in real time: keys that it may expire must outlive a program.
LEASES = (MINUTE, 2 * MINUTE)
KEEPS = (0, 10 * MINUTE)
MEMORIES = (0, 5 * MINUTE, HOUR)
LONGEST_LEASE = max(LEASES)
LONGEST_MEMORY = max(MEMORIES)
LONGEST_KEEP = max(KEEPS)

CLAIMING, OTHER = ("a", "b", "c"), ("d", "e")
"""The channels of calls that claim, and of the others."""

# "9" and "10": the order of texts is not that of age; the others look like parts of keys.
names = st.sampled_from(["9", "10", "{x}:ü#1"])
lanes = st.sampled_from(["north", "north", "9:{south}"])
selectors = st.sampled_from(["o/n|dev", "o/n|dev", "{x}:9"])
workers = st.sampled_from(["w1", "w2"])
leases = st.sampled_from(LEASES)
notes = st.sampled_from([b"x", b"y", b""])
payloads = st.sampled_from([b"x", b"y", b""])
LARGE = b"large" * 100
"""A payload with a key of its own. Only some programs have any, and then many: drawn in all of
them, they would leave fewer programs to everything else."""
delays = st.sampled_from([0, 0, 1, MINUTE])
waits = st.sampled_from([None, 0, 1, MINUTE])
reasons = st.sampled_from(["Broken v7", "ü: no\nline 2"])
limits = st.sampled_from([1, 2, 100])
channels = st.sampled_from([*CLAIMING, *OTHER])
held = st.sampled_from([0, 0, 0, 1, 1, 2, 3, -1, -2, -3])
places = st.sampled_from([0, 0, 1, 2, 3, 5, 8])
whens = st.sampled_from(
    [("delay", 1), ("delay", MINUTE), ("due", -1), ("due", 0), ("due", 1), ("due", MINUTE)]
)
pauses = st.sampled_from([1, 999, 1000, 30_000, MINUTE, 2 * MINUTE, 10 * MINUTE, HOUR])

_chosen: dict[str, SearchStrategy[Any]] = {
    "id": names,
    "lane": lanes,
    "priority": st.sampled_from([0, 49, 51, 100]),
    "when": whens,
    "payload": payloads,
    "max_attempts": st.sampled_from([1, 2]),
    "lease": leases,
    "keep": st.sampled_from(KEEPS),
    "retry": st.sampled_from([NO_OTHER_ATTEMPT, 0, 1000]),
    "selector": selectors,
}


def _some_of(*names: str) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: _chosen[name] for name in names})


job = st.one_of(
    _some_of("id", "lane"),
    _some_of("id"),
    _some_of("lane", "priority"),
    _some_of("lane", "when"),
    _some_of("selector", "priority", "when"),
    _some_of(*_chosen),
)
"""A job to submit; what is left out is the default."""


@st.composite
def _named_job(draw: DrawFn) -> dict[str, Any]:
    """A job to set."""
    return draw(job) | {"id": draw(names)}


options: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "lanes": st.sampled_from(["block", "skip", "park"]),
        "keep": st.sampled_from(KEEPS),
        "max_attempts": st.sampled_from([1, 2, 3]),
        "max_deaths": st.sampled_from([1, 2, 5]),
        "remember": st.sampled_from(MEMORIES),
    }
)
DECLARED = ("lanes", "keep", "max_attempts", "remember")
_usual = {"lanes": "block", "keep": 0, "max_attempts": None, "remember": HOUR}
declared: SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(DECLARED), st.integers(0, 2), min_size=1
).flatmap(
    lambda some: options.map(
        lambda drawn: {name: drawn[name] if which else _usual[name] for name, which in some.items()}
    )
)
"""Some options, as a program declares them; now and then what is usual anyway."""
_length: dict[str, SearchStrategy[Any]] = {"max_length": st.sampled_from([3, 5])}
_retention: dict[str, SearchStrategy[Any]] = {
    "retry": st.sampled_from([NO_OTHER_ATTEMPT, 0, MINUTE]),
    "keep_most": st.sampled_from([0, 2]),
    "keep_dead": st.sampled_from([0, MINUTE]),
    "keep_dead_most": st.just(1),
    "remember_most": st.sampled_from([0, 2]),
}
rare_options: SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(dict[str, SearchStrategy[Any]]()),
    st.fixed_dictionaries(_length),
    st.fixed_dictionaries({}, optional=_retention),
)

REST: Mapping[str, tuple[str, ...]] = {
    "complete": ("result",),
    "fail": ("delay", "reason", "keep_turn"),
    "bury": ("reason",),
    "release": ("delay", "unhandled"),
    "renew": ("ttl",),
    "progress": ("note",),
}
"""What each verb under a lease takes after id and token."""

_rest: dict[str, SearchStrategy[Any]] = {
    "result": payloads,
    "delay": waits,
    "reason": reasons,
    "keep_turn": st.booleans(),
    "ttl": leases,
    "note": notes,
    "unhandled": st.sampled_from(["", "", "first", "anew"]),
}


@st.composite
def _settlement(draw: DrawFn) -> tuple[Any, ...]:
    """How an exchange settles a lease."""
    verb = draw(
        st.sampled_from(["complete", "complete", "fail", "fail", "bury", "release", "renew"])
    )
    return (verb, draw(held), *[draw(values) for values in _takes(verb)])


def _takes(verb: str) -> list[SearchStrategy[Any]]:
    by_name = _rest | {"delay": delays} if verb == "release" else _rest
    return [by_name[name] for name in REST[verb]]


_under_lease = {verb: (held, *_takes(verb)) for verb in REST}


@st.composite
def _lost_step(draw: DrawFn) -> tuple[Any, ...]:
    """A step whose first call gets no reply."""
    verb = draw(st.sampled_from(["submit", "set", "move", "claim", "complete", "exchange", "fail"]))
    return (verb, *[draw(values) for values in STEPS[verb][1]])


_moments = st.lists(st.one_of(whens, st.just(("delay", 0))), min_size=1, max_size=2)
_kinds = st.sampled_from(["due", "due", "lease", "lease", "gone", "dead", "seen"])
_then = st.sampled_from(["claim", "claim", "limited", "reap", "promote", "nothing"])

STEPS: Mapping[str, tuple[int, tuple[SearchStrategy[Any], ...]]] = {
    # verb -> how often, and its arguments; hypothesis shrinks a program towards the first verb
    "time": (3, (pauses,)),
    "submit": (12, (st.lists(job, min_size=1, max_size=4),)),
    "submit_alone": (3, (job,)),
    "submit_again": (3, (places,)),
    "come_back": (
        3,
        (st.sampled_from(["gone", "seen"]), st.sampled_from([0, -1]), st.sampled_from([0, 5])),
    ),
    "claim": (10, (workers, leases, st.sampled_from([1, 1, 2, 3]))),
    "claim_lane": (3, (lanes, leases)),
    "overtake": (1, ()),
    "try_with_others": (2, (st.sampled_from([MINUTE, 2 * MINUTE]),)),
    "leave_to_others": (1, (st.sampled_from([1, MINUTE]), _rest["unhandled"])),
    "claim_selected": (
        6,
        (
            workers,
            st.sampled_from([1, 2, 3]),
            st.fixed_dictionaries(
                {
                    "selectors": st.lists(selectors, max_size=2, unique=True).map(tuple),
                    "max_held": st.sampled_from([None, None, 1, 2]),
                }
            ),
        ),
    ),
    "complete": (5, _under_lease["complete"]),
    "fail": (6, _under_lease["fail"]),
    "bury": (3, _under_lease["bury"]),
    "release": (4, _under_lease["release"]),
    "renew": (2, _under_lease["renew"]),
    "progress": (1, _under_lease["progress"]),
    "exchange": (8, (st.lists(_settlement(), max_size=4), st.sampled_from([0, 1, 1, 3]))),
    "cancel": (4, (places,)),
    "move": (4, (st.lists(places, min_size=1, max_size=3), _moments)),
    "set": (5, (st.lists(_named_job(), min_size=1, max_size=3), places)),
    "retry": (4, (places,)),
    "delete": (2, (places,)),
    "drop": (2, (lanes,)),
    "promote": (1, (limits,)),
    "reap": (2, (limits,)),
    "trim": (2, ()),
    "pause": (2, ()),
    "reconfigure": (1, (options,)),
    "declare": (4, (declared,)),
    "reset": (2, (st.lists(st.sampled_from(DECLARED), min_size=1, max_size=2, unique=True),)),
    "look": (2, (places,)),
    "moment": (9, (_kinds, st.sampled_from([0, -1, 1]), _then)),
    "repeat": (5, (channels,)),
    "lose_reply": (2, (options, _lost_step())),
    "send_late": (1, (channels,)),
    "flood": (2, (whens, st.sampled_from([1, 5]))),
}

_often = [verb for verb, (often, _) in STEPS.items() for _ in range(often)]


@st.composite
def step(draw: DrawFn) -> tuple[Any, ...]:
    """One step of a program."""
    verb = draw(st.sampled_from(_often))
    return (verb, *[draw(values) for values in STEPS[verb][1]])
