"""Which tokens the next step computes: requests, KV blocks, the scheduler. No torch."""
