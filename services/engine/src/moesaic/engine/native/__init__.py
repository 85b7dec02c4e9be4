"""The native backend: our own step loop over torch and torch.distributed."""
