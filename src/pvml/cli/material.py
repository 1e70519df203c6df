"""What `pvml train` trains on: a corpus tokenised into shards, or found so, and cut into rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pvml.cli.train import TrainFlags
from pvml.data.rows import Batches, Rows, pack
from pvml.data.tokenised import Recipe, Tokenised, tokenise
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.training.args import TrainingArgs


@dataclass(frozen=True)
class Material:
    """A corpus split, tokenised and cut."""

    corpus: Tokenised
    rows: Rows
    """Of the training documents."""
    args: TrainingArgs
    """The recipe that they are for."""
    held_out_tokens: int
    """Tokens of the rows that each epoch is graded on."""

    def steps(self, args: TrainingArgs) -> int:
        """How many steps a run of this recipe takes.

        Raises: PvmlError as `TrainingArgs.steps`.
        """
        return args.steps(len(self._batches(args)))

    def _batches(self, args: TrainingArgs) -> Batches:
        return Batches(len(self.rows), args.batch_size, args.seed)

    def facts(self) -> dict[str, Any]:
        """What a run's config keeps of it."""
        facts = {
            "name": self.corpus.name,
            "fingerprint": self.corpus.fingerprint,
            "documents": self.corpus.documents,
            "bytes": self.corpus.n_bytes,
            "held_out_documents": len(self.corpus.held_out),
            "tokens_key": self.corpus.key,
            "tokens": len(self.rows.stream),
            "packing": self.rows.packing,
            "rows": len(self.rows),
            "tokens_cut_off": self.rows.cut_off,
            "tokens_repeated": self.rows.repeated,
            "tokens_in_no_row": self.rows.cut_off + self.rows.remainder,
        }
        if self.corpus.held_out_fingerprint is not None:
            facts["held_out_fingerprint"] = self.corpus.held_out_fingerprint
        return facts

    def lines(self) -> list[str]:
        """What is told of it before the training."""
        corpus, rows = self.corpus, self.rows
        packed = ", each from a document's start" if rows.packing == "document" else ""
        name, n_held_out = corpus.tokenizer.name, len(corpus.held_out)
        if corpus.held_out_name is None:
            sides = [f"{corpus.documents:,} documents, {n_held_out:,} of them held out"]
        else:
            sides = [
                f"{corpus.documents:,} documents, all trained on",
                f"held out   {corpus.held_out_name}: {n_held_out:,} documents",
            ]
        return [
            f"corpus     {corpus.name}: {sides[0]}",
            *sides[1:],
            *(f"           {note}" for note in corpus.notes),
            f"tokenizer  {name}: {len(rows):,} rows of {rows.n_ctx} tokens{packed}",
            *(f"           {note}" for note in self._warnings()),
        ]

    def _warnings(self) -> list[str]:
        rows, args, told = self.rows, self.args, []
        if rows.cut_off:
            share = rows.cut_off / len(rows.stream)
            told.append(
                f"{share:.0%} of the tokens are cut off documents longer than a row: a longer "
                f"--n-ctx keeps more."
            )
        if args.batch_size > len(rows):
            often = args.batch_size / len(rows)
            told.append(
                f"A step of {args.batch_size:,} rows takes each about {often:,.1f} times: give a "
                f"smaller --batch-size, or more text."
            )
        a_pass = len(self._batches(args))
        if a_pass < args.max_steps_per_epoch:
            asked = args.epochs * args.max_steps_per_epoch
            told.append(
                f"An epoch ends with the rows, after {a_pass:,} step{'s' * (a_pass > 1)}: "
                f"{self.steps(args):,} in all, where {args.epochs:,} x --max-steps-per-epoch "
                f"{args.max_steps_per_epoch:,} would be {asked:,}. More --epochs take more."
            )
        return told


def prepare(flags: TrainFlags, tokenizer: Tokenizer | None = None) -> Material:
    """The material that the flags ask for; what is tokenised already is used as it is.

    tokenizer: a run's own, instead of the one that the flags name.

    Raises: PvmlError for a corpus that cannot be used or is too small, before anything is written;
    RunDirError if the disk refuses.
    """
    args, n_ctx = flags.training, flags.model.n_ctx
    recipe = Recipe(
        data=flags.data,
        limit=flags.limit,
        tokenizer=flags.tokenizer,
        n_held_out=args.n_held_out,
        split_seed=args.split_seed,
        held_out=flags.held_out,
    )
    split = flags.held_out is None

    def held_out_rows(tokenizer: Tokenizer, held_out: list[str]) -> Rows:
        remedy = "--n-held-out can hold out more" if split else "Give a larger --held-out"
        with _told_side("held-out", remedy, n_ctx):
            return pack(tokenizer, held_out, n_ctx, args.packing)

    # before the long work: too little to grade on
    corpus = tokenise(recipe, flags.run_dir, tokenizer, check=held_out_rows)
    graded = held_out_rows(corpus.tokenizer, corpus.held_out)
    remedy = "--n-held-out can hold out fewer" if split else "Give a larger --data"
    with _told_side("training", remedy, n_ctx):
        rows = Rows(corpus.stream, n_ctx, corpus.tokenizer.bos_token_id, args.packing)
    return Material(corpus, rows, args, len(graded) * n_ctx)


@contextmanager
def _told_side(side: str, remedy: str, n_ctx: int) -> Iterator[None]:
    """Within it, an error on too little text says which side of the split is meant."""
    try:
        yield
    except PvmlError as error:
        if n_ctx < 2:  # wrong on either side
            raise
        raise PvmlError(f"the {side} documents: {error}. {remedy}") from error
