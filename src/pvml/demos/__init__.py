"""What the commands print that show a layer, or the whole job, at work."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
