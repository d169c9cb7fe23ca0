"""What one device of many does in a run: a plain class per concern, and no Ray."""
