"""Costs of one process on one device, by constants that `flexrlhf profile` measures there."""
