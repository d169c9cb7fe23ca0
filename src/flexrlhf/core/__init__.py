"""Words the whole package shares; needs neither torch nor Ray."""
