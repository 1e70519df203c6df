"""Figures: numbers in, PNG files out. No window is ever opened."""
