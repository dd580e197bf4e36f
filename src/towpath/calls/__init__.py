"""Outgoing HTTP calls that reach only what they may, and the signatures of both directions."""
