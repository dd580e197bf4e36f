"""The worker runtime: takes jobs, runs their handlers, settles the rest. Knows no application."""
