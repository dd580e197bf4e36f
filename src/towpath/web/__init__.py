"""The parts that routes use: keys, problems, limits, bodies, streams, long polls."""
