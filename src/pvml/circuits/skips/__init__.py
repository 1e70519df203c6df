"""Skip-trigrams: read off QK and OV together, looked up in a text, and tried by ablation."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
