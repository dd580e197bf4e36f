"""What the figures over HTTP are measured with: servers as processes, and a client that costs little."""
