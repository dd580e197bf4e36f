"""A GitHub on this machine: it keeps state, calls webhooks, and fails when it is told to."""
