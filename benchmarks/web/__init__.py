"""Tools for figures over HTTP: servers as processes, and clients that cost little."""
