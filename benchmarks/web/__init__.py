"""What the figures over HTTP are measured with: servers as processes, clients that cost little."""
