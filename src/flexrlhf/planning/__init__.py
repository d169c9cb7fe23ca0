"""Which role runs where, and the task graph of an iteration; needs neither torch nor Ray."""
