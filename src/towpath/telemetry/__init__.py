"""What a running worker tells: log lines from a catalogue, metrics, traces. It knows no engine."""
