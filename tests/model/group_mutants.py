"""Planted faults of error groups and of the search; the model test must fail with each of them."""

from __future__ import annotations

from tests.model.mutants import Mutant

GROUP_MUTANTS = [
    Mutant(
        "a retried job stays in its error's group",
        (
            "plan",
            "if job.group then plan_group(job) end",
            "if job.group and job.state ~= 'ready' then plan_group(job) end",
        ),
    ),
    Mutant(
        "a removed job stays in its error's group",
        (
            "plan",
            "if job.group then plan_group(job) end",
            "if job.group and job.state ~= 'gone' then plan_group(job) end",
        ),
    ),
    Mutant("a replaced job stays in its error's group", ("set", "leave_group(job)\n", "\n")),
    Mutant(
        "a job is in the group of its first error for ever",
        (
            "moves",
            "set(job, 'group', group_of(reason))",
            "set(job, 'group', group_of(job.failures and job.failures[1][3] or reason))",
        ),
    ),
    Mutant(
        "a group that is empty stays",
        ("regroup", "redis.call('HDEL', GROUPS, group)", ""),
    ),
    Mutant("numbers are not masked", ("grouping", "string.gsub(word, '%d+', '#')", "word")),
    Mutant("an error is more than its first line", ("grouping", "([^\\r\\n]*)", "(.*)")),
    Mutant(
        "a worker's name is part of the error",
        ("grouping", "'%1#%2'", "'%0'"),
    ),
    Mutant(
        "a head that parks its lane keeps its old place in its group",
        (
            "grouping",
            "if job.score then zadd(GROUP",
            "if job.stored ~= 'dead' then zadd(GROUP",
        ),
    ),
]

SEARCH_MUTANTS = [
    Mutant(
        "a search minds capitals",
        (
            "search",
            "string.find(string.lower(reason), text, 1, true)",
            "string.find(reason, text, 1, true)",
        ),
    ),
    Mutant(
        "a search begins with the oldest",
        ("search", "for i = #found - 1, 1, -2 do", "for i = 1, #found, 2 do"),
    ),
    Mutant(
        "a search finds every dead job",
        ("search", "if reason and string.find", "if reason or string.find"),
    ),
]
