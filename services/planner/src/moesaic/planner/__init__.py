"""The planner: load windows in, placements out, each only where its gain is worth the move."""
