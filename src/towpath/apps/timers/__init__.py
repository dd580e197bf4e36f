"""Timers: work that runs at its time, in your own processes or by a call to your application."""

from towpath.apps.application import Application
from towpath.apps.timers.options import TimersOptions

APPLICATION = Application(
    name="timers",
    options=TimersOptions,
    queues="towpath.apps.timers.model:QUEUES",
    service="towpath.apps.timers.service:serving",
    errors="towpath.apps.timers.errors:ANSWERED",
    http="towpath.apps.timers.instances_http:MOUNT",
)
