"""The whole job in one go: train a small model, sample it, prove it right, take it apart, draw it.

What `pvml demo` and `make demo` run. The settings are in `args.py`, the text in
`preparing.py`, the training in `learning.py`.
"""

import math
import shlex
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch as t
from jaxtyping import Int
from rich.console import Console
from torch import Tensor

from pvml import program
from pvml.circuits.chance import SIGNIFICANCE
from pvml.circuits.heads.names import EXCESS, HeadScore, best_heads, describe_heads
from pvml.circuits.heads.scores import find_heads
from pvml.circuits.paths.routes import Routes
from pvml.data.rows import pack
from pvml.data.tokenizer import Tokenizer
from pvml.demos.args import DemoArgs
from pvml.demos.learning import MADE_BY, learn
from pvml.demos.prediction import TOKENS_SHOWN, say, take_apart
from pvml.demos.preparing import Material, prepare
from pvml.errors import CheckFailed, PvmlError, RunDirError
from pvml.modules.transformer import Transformer
from pvml.parity.check import check
from pvml.plots.attention import attention_grids
from pvml.plots.losses import loss_curve
from pvml.plots.routes import logit_sum, sum_bars
from pvml.runs.format import RunDir
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler

_ROWS_LOOKED_AT = 64
_ROWS_VERIFIED = 2
_HEADS_DRAWN = 4


def run(args: DemoArgs, console: Console | None = None) -> None:
    """Print each stage as it is done, and leave a run directory with plots in it.

    Raises: PvmlError for a text or a setting that cannot be used, RunDirError if another run is in
    the way; CheckFailed if the trained model differs from the reference, or a sum from its logit.
    """
    started = time.perf_counter()
    console = console or Console()
    path = Path(args.run_dir) / args.name
    _require_replaceable(path)
    _heading(console, "1. A text, cut into tokens")
    material = prepare(args)
    _tell_material(console, material)
    _heading(console, "2. A two-layer attention-only model learns it")
    run_dir, model = learn(console, args, material, path)
    tokenizer = material.tokenizer
    looked_at = _rows_of_text(material)
    _heading(console, "3. It writes")
    say(console, _story(args, material, model))
    _heading(console, "4. Every tensor of it against an independent float64 computation")
    verify(console, model, looked_at)
    _heading(console, "5. One prediction, taken apart")
    routes, tokens, answer = take_apart(console, model, tokenizer, looked_at)
    _heading(console, "6. Its heads")
    scores = _heads(console, model, looked_at, args.seed)
    files = _draw(run_dir, model, tokenizer, routes, tokens, answer, scores)
    _tell_what_next(console, args, run_dir, files, time.perf_counter() - started)


def _require_replaceable(path: Path) -> None:
    """Nothing, if the run may be made here: nobody's run is lost to a demo but an earlier demo's.

    Raises: RunDirError otherwise.
    """
    if not path.is_dir() or not any(path.iterdir()):
        return
    with suppress(RunDirError):
        if RunDir.open(path).data.get("made_by") == MADE_BY:
            return
    raise RunDirError(
        f"{path} holds something that the demo did not make, so it is left alone: --name gives "
        f"the demo's run another name"
    )


def _heading(console: Console, text: str) -> None:
    console.print()
    console.rule(text, align="left")


def _tell_material(console: Console, material: Material) -> None:
    corpus, rows = material.corpus, material.rows
    say(
        console,
        f"{corpus.name}: {len(material.train):,} documents to learn from, "
        f"{len(material.held_out):,} held out; tokenizer {material.tokenizer.name}, trained on "
        f"them; {len(rows):,} rows of {rows.n_ctx} tokens",
    )
    for note in material.notes:
        say(console, note)


def _rows_of_text(material: Material) -> Int[Tensor, "batch posn"]:
    """Rows to look at the model with: held-out ones, filled up with others where they are few."""
    held_out = pack(material.tokenizer, material.held_out, material.rows.n_ctx)
    rows = held_out.batch(range(min(len(held_out), _ROWS_LOOKED_AT)))
    missing = min(_ROWS_LOOKED_AT - len(rows), len(material.rows))
    return t.cat([rows, material.rows.batch(range(missing))]) if missing else rows


def _story(args: DemoArgs, material: Material, model: Transformer) -> str:
    prompt = args.prompt
    if prompt is None:
        prompt = " ".join(material.held_out[0].split()[:4])
    settings = SamplingArgs(max_new_tokens=150, temperature=0.7, seed=args.seed)
    return Sampler(model, material.tokenizer).sample(prompt, settings)


def verify(console: Console, model: Transformer, rows: Int[Tensor, "batch posn"]) -> None:
    report = check(model, rows[:_ROWS_VERIFIED])
    say(console, report.summary())
    if not report.ok:
        say(console, report.table(only_bad=True))
        raise CheckFailed(f"the trained model is not what it should be: {report.summary()}")


def _heads(
    console: Console, model: Transformer, rows: Int[Tensor, "batch posn"], seed: int
) -> list[HeadScore]:
    try:
        scores = find_heads(model, rows, seed=seed)
    except PvmlError as problem:
        say(console, f"not asked: {problem}")
        return []
    say(console, describe_heads(scores))
    say(
        console,
        f"(A score is a head's mean share of attention, 0 to 1: on the token before, or, in random "
        f"tokens that repeat, on what followed the same token the first time. A head is named from "
        f"{EXCESS} above its shuffled null on, at a p of at most {SIGNIFICANCE}, if no place "
        f"beside the one in question gets more.)",
    )
    return scores


def _draw(
    run_dir: RunDir,
    model: Transformer,
    tokenizer: Tokenizer,
    routes: Routes,
    tokens: Int[Tensor, " posn"],
    answer: int,
    scores: list[HeadScore],
) -> list[Path]:
    """The plots: the loss, the patterns of the named heads (or the nearest), the logit's terms."""
    folder = run_dir.path / "plots"
    heads = {
        f"{s.layer}.{s.head}, {'' if s.beyond else 'nearest to '}{s.kind}": (s.layer, s.head)
        for s in best_heads(scores)[:_HEADS_DRAWN]
    }
    heads = heads or {"0.0": (0, 0), "1.0": (1, 0)}
    names = "blocks.*.attn.attn_pattern"
    with t.no_grad():
        _, cache = model.run_with_cache(tokens[None].to(model.device), names_filter=names)
    shown = slice(max(0, len(tokens) - TOKENS_SHOWN), len(tokens))
    patterns = {
        title: cache[f"blocks.{layer}.attn.attn_pattern"][0, head, shown, shown].cpu().numpy()
        for title, (layer, head) in heads.items()
    }
    texts = tokenizer.to_str_tokens(tokens)
    title = f"logit of {tokenizer.decode([answer])!r} after {texts[-1]!r}"
    return [
        loss_curve(run_dir.rows(), folder / "loss.png", guess=math.log(model.cfg.d_vocab)),
        attention_grids(patterns, texts[shown], folder / "attention.png"),
        sum_bars(replace(logit_sum(routes, answer), title=title), folder / "routes.png"),
    ]


def _tell_what_next(
    console: Console, args: DemoArgs, run_dir: RunDir, files: list[Path], seconds: float
) -> None:
    _heading(console, f"Done in {seconds:.0f} s")
    say(console, f"the run: {run_dir.path} (config, tokenizer, weights, metrics, summary)")
    for file in files:
        say(console, f"a plot: {file}")
    prompt = shlex.quote(args.prompt or "Once upon a time")
    path, pvml = shlex.quote(str(run_dir.path)), program.pvml()
    say(
        console,
        "\nwhat to try next:\n"
        f"  {pvml} sample {path} {prompt}\n"
        f"  {pvml} trace {path} {prompt}\n"
        f"  {pvml} plot {path}\n"
        f"  {pvml} demo --data YOUR_TEXT.txt\n"
        f"  {program.python()} -m pvml.circuits.two_routes",
    )
