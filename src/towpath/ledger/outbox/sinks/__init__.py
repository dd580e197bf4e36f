"""The sinks: a Redis stream, Kafka and a webhook. Others can implement `event.Sink`.

Each sink has a module of its own, so that only the libraries of used sinks must be installed.
"""
