"""The metrics of issues, in addition to those of their jobs."""

from __future__ import annotations

from towpath.telemetry.measures import MetricKind, MetricSpec

HANDED_OUT = MetricSpec(
    "towpath_issues_handed_out_total",
    MetricKind.COUNTER,
    ("state",),
    "Tasks handed out to agents, by their type: development, review, fix.",
    "Do agents get work?",
)
ENDED = MetricSpec(
    "towpath_issues_ended_total",
    MetricKind.COUNTER,
    ("state",),
    "Tasks that agents held, by how they ended: completed, failed, released, expired, refused, "
    "withdrawn.",
    "Do agents finish their tasks?",
)
STALE = MetricSpec(
    "towpath_issues_stale_total",
    MetricKind.COUNTER,
    (),
    "Calls of agents that were refused because they no longer hold the task.",
    "Do agents exceed their lease?",
)
WEBHOOKS = MetricSpec(
    "towpath_issues_webhooks_total",
    MetricKind.COUNTER,
    ("state",),
    "Webhooks, by result: taken, stale, ignored.",
    "Do webhooks arrive?",
)
SYNCED = MetricSpec(
    "towpath_issues_synced_total",
    MetricKind.COUNTER,
    ("state",),
    "Comparisons of a repository with GitHub, by result: done, failed, gone.",
    "Does reconciliation work?",
)
REPAIRED = MetricSpec(
    "towpath_issues_repaired_total",
    MetricKind.COUNTER,
    ("state",),
    "Repairs: issue (a webhook was lost), label (a label did not show who holds the issue), task "
    "(a generic call of the queue ended the task of an issue that nobody held).",
    "Are webhooks lost? Does somebody change our labels, or our tasks?",
)
PROJECTED = MetricSpec(
    "towpath_issues_projected_total",
    MetricKind.COUNTER,
    ("state",),
    "Changes on GitHub that show who holds an issue, by result: shown, undone, refused.",
    "Does GitHub show who works on what?",
)
METRICS = (HANDED_OUT, ENDED, STALE, WEBHOOKS, SYNCED, REPAIRED, PROJECTED)
