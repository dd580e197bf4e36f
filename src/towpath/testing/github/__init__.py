"""A GitHub on this machine: it keeps state, calls webhooks, and fails when a test asks for it."""
