"""Timers: work that runs at its time, in your own processes or by a call to your application."""

from towpath.apps.application import Application
from towpath.apps.timers.log_events import LOG_EVENTS
from towpath.apps.timers.measures import BREAKERS_OPEN, CALLS, FIRED, INSTANCES, LATE
from towpath.apps.timers.options import TimersOptions

APPLICATION = Application(
    name="timers",
    options=TimersOptions,
    queues="towpath.apps.timers.model:QUEUES",
    service="towpath.apps.timers.service:serving",
    errors="towpath.apps.timers.errors:ANSWERED",
    handlers="towpath.apps.timers.scheduler:Scheduler",
    tasks="towpath.apps.timers.service:tasks",
    http="towpath.apps.timers.http:ROUTES",
    pages="towpath.apps.timers.pages:PAGES",
    cli="towpath.apps.timers.cli:app",
    noun="Timers: submit, set, show, list, move, cancel, log, types.",
    metrics=(LATE, FIRED, CALLS, INSTANCES, BREAKERS_OPEN),
    log_events=LOG_EVENTS,
)
