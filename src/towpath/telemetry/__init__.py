"""Log events from a catalogue, metrics and traces of a process. Does not import the engine."""
