"""What routes are made of: keys, problems, limits, bodies, streams, long polls."""
