"""From a name, a folder or a file to a model and its tokenizer, and how each tensor came in.

`meaning.py` says what the word MODEL means; each form of model has a file of its own.
"""

from pvml.loading.hub import HUB_MODELS
from pvml.loading.hugging_face import load_hugging_face
from pvml.loading.importing import import_model
from pvml.loading.meaning import Alone, Loaded, load, load_alone
from pvml.loading.nano_gpt import load_nano_gpt
from pvml.loading.report import Report, Row

__all__ = [
    "HUB_MODELS",
    "Alone",
    "Loaded",
    "Report",
    "Row",
    "import_model",
    "load",
    "load_alone",
    "load_hugging_face",
    "load_nano_gpt",
]
