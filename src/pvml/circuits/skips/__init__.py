"""Skip-trigrams: read off QK and OV together, looked up in a text, and tried by ablation."""
