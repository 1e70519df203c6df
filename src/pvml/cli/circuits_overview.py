"""`pvml circuits MODEL`: every head at a glance, what is beyond chance, and who composes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from pvml.cli.circuits_output import null_of, print_json, say, table, told, waiting
from pvml.cli.circuits_subject import RowsFlags, Subject, written

if TYPE_CHECKING:
    from pvml.circuits.heads.names import HeadScore
    from pvml.circuits.weights.composition import CompositionScore
    from pvml.circuits.weights.copying import CopyingScore

_MANY = 48
"""Heads, beyond which it takes minutes to find out who composes."""
_PAIRS = 5
"""Of each kind of composition."""


@dataclass(frozen=True, kw_only=True)
class OverviewFlags(RowsFlags):
    """Show every head of a model: what it has earned a name for, whether it copies, who composes.

    `pvml circuits MODEL COMMAND` goes further; a command's `--help` says how. Commands: heads,
    copying, compose; paths, scores, attention (of a text); ov, qk, bigram, survey (over the whole
    vocabulary); skips, induction, report, check; training (of a run).
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory or the NAME of one in runs, a bundled model (attn-1l, attn-2l, stories), a
    Hugging Face GPT-2's folder, or gpt2, ..."""


def overview(flags: OverviewFlags) -> int:
    """Print what each head is called and copies, and who composes; the exit code."""
    from pvml.circuits.heads.scores import head_scores
    from pvml.circuits.weights.composition import composition_scores
    from pvml.circuits.weights.copying import copying_scores
    from pvml.cli.circuits_heads import composition_json, copying_json, score_json

    subject = Subject(flags.model, flags.device)
    cfg = subject.model.cfg
    rows = subject.rows(flags)
    composes = cfg.n_layers > 1 and cfg.n_layers * cfg.n_heads <= _MANY
    with waiting("watching every head"):
        scores = head_scores(subject.model, rows.tokens, seed=flags.seed)
        copying = copying_scores(subject.model, seed=flags.seed)
        pairs = composition_scores(subject.model, seed=flags.seed) if composes else []
    if flags.json:
        found = {
            **subject.told("overview"),
            "text": rows.told(),
            "seed": flags.seed,
            "heads": [score_json(score) for score in scores],
            "copying": [copying_json(score) for score in copying],
            "composition": [composition_json(pair) for pair in pairs] if composes else None,
        }
        print_json(found)
        return 0
    say(subject.title)
    if not cfg.n_layers:
        say("\nThis model has no heads: it is its bigrams (`pvml circuits MODEL bigram`).")
        return 0
    say(told(str(rows)))
    say(_heads(scores, copying))
    say(_compositions(pairs) if composes else _not_composed(subject))
    return 0


def _heads(scores: "Sequence[HeadScore]", copying: "Sequence[CopyingScore]") -> str:
    from pvml.circuits.heads.names import NAMING

    lines = []
    for one in copying:
        head = one.layer, one.head
        names = [s for s in scores if (s.layer, s.head) == head and s.beyond]
        names.sort(key=lambda score: -score.excess)
        kinds = list(dict.fromkeys(score.kind for score in names))
        best = [next(score for score in names if score.kind == kind) for kind in kinds]
        called = ", ".join(f"{s.kind} {s.score:.2f} ({s.score - s.excess:z.2f})" for s in best)
        value = "undefined" if one.score is None else f"{one.score:+z.2f}{'*' * one.beyond}"
        by_chance = null_of(one.null_mean, one.null_spread)
        lines.append((written(head), value if one.beyond else f"{value} ", by_chance, called))
    headings = ("head", "copying ", "random heads", "named for, with its score (and by chance)")
    explained = told(
        f"*: copies more than random heads do. {NAMING}. Nulls: shuffled tokens and random heads; "
        f"by chance: the larger of their means."
    )
    return f"\n{table(headings, lines, (headings[0], headings[3]))}\n\n{explained}"


def _compositions(pairs: "Sequence[CompositionScore]") -> str:
    lines = ["\nWho reads what a lower head wrote (beside random rotations between the two):"]
    for kind in ("Q", "K", "V"):
        of_kind = [pair for pair in pairs if pair.kind == kind]
        found = [pair for pair in of_kind if pair.beyond]
        found.sort(key=lambda pair: pair.null_mean - pair.score)
        lines.append(f"  {kind}: {len(found)} of {len(of_kind)} pairs beyond chance")
        lines += [
            f"     {written(pair.writer)} > {written(pair.reader)}  {pair.score:.3f} "
            f"({pair.null_mean:.3f} ± {pair.null_spread:.3f})"
            for pair in found[:_PAIRS]
        ]
        if len(found) > _PAIRS:
            lines.append(f"     and {len(found) - _PAIRS} more: pvml circuits MODEL compose")
    return "\n".join(lines)


def _not_composed(subject: Subject) -> str:
    cfg = subject.model.cfg
    if cfg.n_layers == 1:
        return "\nHeads of one layer cannot read each other: there is no composition."
    return told(
        f"\nWho composes takes longer for {cfg.n_layers * cfg.n_heads} heads: "
        f"pvml circuits MODEL compose"
    )
