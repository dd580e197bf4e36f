"""Where events go: a Redis stream, Kafka, a webhook, or whatever keeps to `event.Sink`.

Each is in a module of its own, so that only what is used has to be installed.
"""
