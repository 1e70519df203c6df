"""What a run leaves on disk. `layout.py` knows the files' names; the rest knows one kind each."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {"RunDir": "format", "Checkpoint": "format"},
)
