"""Model families, checkpoints and the arithmetic of one step."""
