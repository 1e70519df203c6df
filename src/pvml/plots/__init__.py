"""Figures: numbers in, PNG or SVG files out. No window is ever opened."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
