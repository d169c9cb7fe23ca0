"""The maths of RLHF as pure functions on tensors; nothing here knows ranks, models or configs."""
