"""The plan that everything else reads, and how placements are made."""
