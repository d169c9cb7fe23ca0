"""Losses and advantages as pure functions on tensors."""
