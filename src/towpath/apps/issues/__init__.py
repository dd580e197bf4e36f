"""Issues: handed out to competing agents, one live holder each; GitHub shows who has what."""

from towpath.apps.application import Application
from towpath.apps.issues.log_events import LOG_EVENTS
from towpath.apps.issues.measures import METRICS
from towpath.apps.issues.options import IssuesOptions

APPLICATION = Application(
    name="issues",
    options=IssuesOptions,
    queues="towpath.apps.issues.model:QUEUES",
    tables="towpath.apps.issues.tables:TABLES",
    errors="towpath.apps.issues.errors:ANSWERS",
    service="towpath.apps.issues.service:serving",
    tasks="towpath.apps.issues.service:tasks",
    handlers="towpath.apps.issues.handlers:IssuesConsumers",
    http="towpath.apps.issues.http:ROUTES",
    pages="towpath.apps.issues.pages:PAGES",
    tools="towpath.apps.issues.tools:TOOLS",
    cli="towpath.apps.issues.cli:app",
    noun="Issues: add, list, show, release, sync, policy.",
    metrics=METRICS,
    log_events=LOG_EVENTS,
)
