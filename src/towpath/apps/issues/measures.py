"""What issues count, beside their jobs."""

from __future__ import annotations

from towpath.telemetry.measures import Kind, MetricSpec

HANDED_OUT = MetricSpec(
    "towpath_issues_handed_out_total",
    Kind.COUNTER,
    ("state",),
    "Tasks handed out to agents, by their type: development, review, fix.",
    "Do agents get work?",
)
ENDED = MetricSpec(
    "towpath_issues_ended_total",
    Kind.COUNTER,
    ("state",),
    "Holds of issues that have ended, by how: completed, failed, released, expired, refused, "
    "withdrawn.",
    "Do agents finish what they take, or do they vanish?",
)
STALE = MetricSpec(
    "towpath_issues_stale_total",
    Kind.COUNTER,
    (),
    "Words of agents that were refused because they no longer hold the task.",
    "Do agents sleep past their lease?",
)
WEBHOOKS = MetricSpec(
    "towpath_issues_webhooks_total",
    Kind.COUNTER,
    ("state",),
    "Webhooks, by what came of them: taken, stale, ignored.",
    "Does GitHub tell us of changes?",
)
SYNCED = MetricSpec(
    "towpath_issues_synced_total",
    Kind.COUNTER,
    ("state",),
    "Comparisons of a repository with GitHub, by what came of them: done, failed, gone.",
    "Does reconciliation work?",
)
REPAIRED = MetricSpec(
    "towpath_issues_repaired_total",
    Kind.COUNTER,
    ("state",),
    "What a comparison with GitHub had to repair: issue (a webhook that never came), label (what "
    "GitHub shows differs from who holds the issue).",
    "Are webhooks lost? Does somebody change our labels?",
)
PROJECTED = MetricSpec(
    "towpath_issues_projected_total",
    Kind.COUNTER,
    ("state",),
    "What GitHub was told of who holds an issue, by what came of it: shown, undone, refused.",
    "Does GitHub show who works on what?",
)
METRICS = (HANDED_OUT, ENDED, STALE, WEBHOOKS, SYNCED, REPAIRED, PROJECTED)
