"""What the user asks for: schema, loading and checks of a run's configuration."""
