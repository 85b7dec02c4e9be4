"""The monitor: load counters in, load windows with hot and cold experts out."""
