"""Events that leave if and only if the change does, and the sinks they go to."""
