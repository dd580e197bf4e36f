"""Webhooks of forges: who sent it, what happened, and the task that follows. No I/O, no clock."""
