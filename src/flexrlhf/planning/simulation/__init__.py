"""A plan's task graphs on a virtual clock: when everything starts and ends, and what that costs."""
