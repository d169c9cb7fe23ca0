"""One iteration as a task graph, and the scheduler that runs it."""
