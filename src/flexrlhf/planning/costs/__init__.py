"""What work takes: bytes per device and phase, seconds per task, seconds per transfer."""
