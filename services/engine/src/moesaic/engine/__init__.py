"""The engine: token ids in, token ids out; experts live in slots that a placement fills."""
