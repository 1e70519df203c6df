"""Figures: numbers in, PNG or SVG files out. No window is ever opened."""
