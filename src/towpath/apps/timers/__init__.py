"""Timers: work that runs at its time, in your own processes or by a call to your application."""

from towpath.apps.application import Application
from towpath.apps.timers.measures import BREAKERS_OPEN, CALLS, INSTANCES
from towpath.apps.timers.options import TimersOptions

APPLICATION = Application(
    name="timers",
    options=TimersOptions,
    queues="towpath.apps.timers.model:QUEUES",
    service="towpath.apps.timers.service:serving",
    errors="towpath.apps.timers.errors:ANSWERED",
    handlers="towpath.apps.timers.scheduler:Scheduler",
    http="towpath.apps.timers.instances_http:MOUNT",
    metrics=(CALLS, INSTANCES, BREAKERS_OPEN),
)
