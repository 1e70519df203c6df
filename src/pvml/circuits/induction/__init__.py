"""The induction circuit: found, taken apart, and what it is worth where tokens repeat."""
