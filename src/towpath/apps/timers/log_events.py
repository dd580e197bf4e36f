"""The log events of timers: instances that are avoided, and called again."""

from __future__ import annotations

from towpath.telemetry.events import WARNING, LogEvent, LogEvents

INSTANCE_AVOIDED = LogEvent(
    "instance.avoided",
    "Several calls to an instance failed: this scheduler calls others for a while, then tries it "
    "again.",
    ("app", "instance", "task_type", "avoided"),
    WARNING,
)
INSTANCE_RECOVERED = LogEvent(
    "instance.recovered",
    "An instance that had failed accepted a call; it is called as before.",
    ("app", "instance", "task_type"),
)
LOG_EVENTS = LogEvents(
    (INSTANCE_AVOIDED, INSTANCE_RECOVERED),
    {
        "app": "The application that the timers belong to.",
        "avoided": "Seconds for which an instance is not called.",
        "instance": "The address of an application's instance: host and port.",
        "task_type": "The type of timers, or of an issue's task; all = every type.",
    },
)
