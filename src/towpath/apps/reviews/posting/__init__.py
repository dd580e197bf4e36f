"""Posting a review back to its forge: small adapters, off unless a token is configured."""
