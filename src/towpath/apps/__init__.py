"""Applications: thin, strangers to each other, on the engine's verbs."""
