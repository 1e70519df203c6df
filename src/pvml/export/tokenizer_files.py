"""A tokenizer as `AutoTokenizer.from_pretrained` opens it: tokenizer.json and its settings."""

from collections.abc import Callable
from pathlib import Path

from pvml.data.byte_level import END_OF_TEXT
from pvml.data.tokenizer import Tokenizer
from pvml.runs.json_object import to_json

NOTE = (
    "In PvML the spelling of <|endoftext|> in a text is plain text; Hugging Face's tokenizers read "
    "the token. Every other text has the same ids."
)


def write_tokenizer(tokenizer: Tokenizer, n_ctx: int, folder: Path) -> None:
    """Write the two files. n_ctx: the longest sequence that the model reads, in tokens."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": n_ctx,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    (folder / "tokenizer_config.json").write_text(to_json(settings, indent=2) + "\n", "utf-8")


def encoder(folder: Path) -> Callable[[str], list[int]]:
    """What Hugging Face's AutoTokenizer makes of a text, with the files in a folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text)["input_ids"])

    return ids
