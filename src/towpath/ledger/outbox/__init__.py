"""The outbox: events stored in the transaction of their change, and the sinks that get them."""
