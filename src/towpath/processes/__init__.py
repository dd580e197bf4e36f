"""A command run with limits, in its own process group, ended with its parent."""
