"""The bench keeps its word: who takes part, what it shows, what it leaves behind."""
