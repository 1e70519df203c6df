"""Text in, rows of token ids out. Models, losses and training are elsewhere."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Tokenizer": "tokenizer",
        "Corpus": "sources",
        "open_corpus": "sources",
        "split_documents": "split",
        "Recipe": "tokenised",
        "Tokenised": "tokenised",
        "tokenise": "tokenised",
        "find_tokenised": "tokenised",
        "tokenise_in_memory": "tokenised",
        "Rows": "rows",
        "pack": "rows",
        "Batches": "rows",
        "corpus_statistics": "statistics",
        "tinystories_loaders": "tinystories",
    },
)
