"""Which placements there are, how good each is by simulation, and why the winner won."""
