"""Loaders over TinyStories or any other corpus, and a look at what they give.

`python -m pvml.data.tinystories` and `pvml data` print the look. Reading is in `sources.py`.
"""

import sys
from collections.abc import Sequence

import tyro
from torch import Tensor
from torch.utils.data import DataLoader

from pvml.config import Config
from pvml.data.args import DataArgs
from pvml.data.rows import Batches, Rows, pack
from pvml.data.statistics import corpus_statistics
from pvml.data.tokenised import Recipe, tokenise_in_memory
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

Loader = DataLoader[dict[str, Tensor]]


def tinystories_loaders(
    cfg: Config,
    tokenizer: Tokenizer | None = None,
    data: str = "tinystories",
    batch_size: int = 32,
    n_held_out: int | None = None,
    seed: int = 0,
    workers: int = 0,
) -> tuple[Loader, Loader]:
    """Two loaders, train and test, whose batches are {"tokens": (batch, cfg.n_ctx)}.

    tokenizer: GPT-2's unless given. data: what `open_corpus` reads. n_held_out: documents kept for
    the test loader, which reads each of their rows once, in order; unset, as in `split_documents`.
    workers: processes that fetch batches; 0 fetches in this one. Their number changes no batch.

    A second pass over the train loader goes on where the first stopped (see `Batches`).

    Raises: PvmlError for a corpus that cannot be read, is too small, or needs a larger d_vocab.
    """
    tokenizer = tokenizer or Tokenizer.gpt2()
    if cfg.d_vocab < tokenizer.d_vocab:
        raise PvmlError(
            f"the model has d_vocab {cfg.d_vocab}, and tokenizer {tokenizer.name} gives ids up to "
            f"{tokenizer.d_vocab - 1}: set d_vocab to {tokenizer.d_vocab}"
        )
    recipe = Recipe(data=data, n_held_out=n_held_out, split_seed=seed)
    made = tokenise_in_memory(recipe, tokenizer)
    train = Rows(made.stream, cfg.n_ctx, tokenizer.bos_token_id)
    test = pack(tokenizer, made.held_out, cfg.n_ctx)
    return (
        _train_loader(train, batch_size, seed, workers),
        DataLoader(test, batch_size=batch_size, num_workers=workers),
    )


def listing(args: DataArgs) -> list[str]:
    """The lines that the command prints: rows, a batch, the first row as text, statistics.

    Raises: PvmlError for a corpus that cannot be read or is too small.
    """
    made = tokenise_in_memory(
        Recipe(
            data=args.data,
            limit=args.limit,
            tokenizer=args.tokenizer,
            n_held_out=args.n_held_out,
            split_seed=args.seed,
        )
    )
    tokenizer = made.tokenizer
    train = Rows(made.stream, args.n_ctx, tokenizer.bos_token_id, args.packing)
    test = pack(tokenizer, made.held_out, args.n_ctx, args.packing)
    batch = next(iter(_train_loader(train, args.batch_size, args.seed)))
    return [
        f"train rows   : {len(train):,}",
        f"test rows    : {len(test):,}, of {len(made.held_out):,} documents held out whole",
        f"row length   : {train.n_ctx:,} tokens",
        f"batch        : {tuple(batch['tokens'].shape)}  keys={list(batch)}",
        "",
        "first row, decoded back to text:",
        "",
        tokenizer.decode(train[0]["tokens"]),
        "",
        f"{'corpus':<20}: {made.name}, tokenizer {tokenizer.name}",
        *corpus_statistics([train, test]).lines(),
        *made.notes,
    ]


def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m pvml.data.tinystories"
) -> int:
    """Print the listing for command-line flags: 0, or 2 where the corpus cannot be used."""
    args = tyro.cli(DataArgs, args=arguments, prog=prog)
    try:
        print("\n".join(listing(args)))
    except PvmlError as error:
        print(f"pvml: {error}", file=sys.stderr)
        return 2
    return 0


def _train_loader(rows: Rows, batch_size: int, seed: int, workers: int = 0) -> Loader:
    return DataLoader(rows, batch_sampler=Batches(len(rows), batch_size, seed), num_workers=workers)


if __name__ == "__main__":
    sys.exit(main())
