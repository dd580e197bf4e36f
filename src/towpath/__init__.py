"""Towpath: a broker for work that must be done once, in order and on time."""

from towpath.blocking import BlockingEngine
from towpath.clock import Duration, ManualClock, days, hours, milliseconds, minutes, seconds
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability, ServerFacts
from towpath.engine.engine import Engine
from towpath.engine.events import Event
from towpath.engine.inspect import Counts, Explanation, Job, Page, Position, Why
from towpath.engine.model import (
    HIGH,
    LOW,
    NORMAL,
    Bury,
    Call,
    Complete,
    Exchanged,
    Fail,
    JobOptions,
    JobRef,
    Lease,
    NewJob,
    Outcome,
    Release,
    Renew,
    Settlement,
    Submitted,
    job_ref,
    new_job,
)
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy
from towpath.engine.states import State
from towpath.errors import FellBehind, TowpathError

__version__ = "0.1.0"

__all__ = [
    "HIGH",
    "LOW",
    "NORMAL",
    "BlockingEngine",
    "Bury",
    "Call",
    "Complete",
    "Counts",
    "Durability",
    "Duration",
    "Engine",
    "Event",
    "Exchanged",
    "Explanation",
    "Exponential",
    "Fail",
    "FellBehind",
    "Fixed",
    "Job",
    "JobOptions",
    "JobRef",
    "LanePolicy",
    "Lease",
    "Limits",
    "Listed",
    "ManualClock",
    "Never",
    "NewJob",
    "Outcome",
    "Page",
    "Position",
    "QueueOptions",
    "Release",
    "Renew",
    "RetryPolicy",
    "ServerFacts",
    "Settlement",
    "State",
    "Submitted",
    "TowpathError",
    "Why",
    "days",
    "hours",
    "job_ref",
    "milliseconds",
    "minutes",
    "new_job",
    "seconds",
]
