"""What the model is compared with: a NumPy forward from the formulae, and Hugging Face's GPT-2."""

from pvml.lazy import files_of

__getattr__ = files_of(__name__)
