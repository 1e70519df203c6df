"""The command `pvml`: `main.py` finds the command's file, which reads its flags and does it."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
