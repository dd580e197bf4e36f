"""The engine: jobs on Redis or Valkey. The only code that talks to Redis."""
