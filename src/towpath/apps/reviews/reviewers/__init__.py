"""Who reviews: a Python function, a command, or an HTTP endpoint. All three are one port."""
