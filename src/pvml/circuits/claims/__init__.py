"""Claims: what is said of heads, with the scores, nulls and inputs that it stands on."""
