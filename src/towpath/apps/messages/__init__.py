"""Messages: one at a time per user, first in, first out. A lane of the engine per user."""
