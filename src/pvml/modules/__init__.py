"""The model, one layer a file. `python -m pvml.modules.attention` shows a layer at work."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
