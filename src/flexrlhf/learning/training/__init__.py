"""From losses to new weights on the devices of one role."""
