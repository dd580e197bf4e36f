"""Greetings: an application of another project. People are greeted once, in Python, over HTTP, from
the command line and by webhooks.
"""

from towpath.apps.application import Application
from towpath.options import Options, Secret
from towpath.telemetry.events import LogEvent, LogEvents
from towpath.telemetry.measures import MetricKind, MetricSpec


class GreetingsOptions(Options, frozen=True, kw_only=True):
    """How people are greeted."""

    word: str = "hello"
    """What is said before the name."""
    times: int = 1
    """How often."""
    github_secrets: tuple[Secret, ...] = ()
    """What GitHub's webhooks are signed with; none = they are not taken."""


GREETED = MetricSpec(
    "towpath_greetings_greeted_total", MetricKind.COUNTER, (), "Greetings asked for.", "Is it used?"
)
GREETING_ASKED = LogEvent("greeting.asked", "Somebody was to be greeted.", ("person", "job"))
LOG_EVENTS = LogEvents((GREETING_ASKED,), {"person": "Who is greeted."})
HERE = "tests.applications.greetings"
APPLICATION = Application(
    name="greetings",
    noun="Greetings: greet.",
    options=GreetingsOptions,
    queues=f"{HERE}.service:QUEUES",
    raw={"greetings": ("submit",)},
    errors=f"{HERE}.service:ERRORS",
    service=f"{HERE}.service:serving",
    tasks=f"{HERE}.service:tasks",
    probe=f"{HERE}.service:probe",
    handlers=f"{HERE}.service:Consumers",
    http=f"{HERE}.http:ROUTES",
    tools=f"{HERE}.tools:TOOLS",
    cli=f"{HERE}.cli:app",
    metrics=(GREETED,),
    log_events=LOG_EVENTS,
)
