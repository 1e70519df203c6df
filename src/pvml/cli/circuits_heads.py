"""`pvml circuits MODEL heads | copying | compose`: what heads do, each score beside its null."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pvml.cli.circuits_output import (
    null_of,
    p_of,
    print_json,
    require_picture,
    say,
    say_drawn,
    table,
    told,
    waiting,
    width,
)
from pvml.cli.circuits_subject import CommonFlags, Names, RowsFlags, Subject, all_of, written
from pvml.errors import PvmlError

if TYPE_CHECKING:
    from pvml.circuits.heads.names import HeadScore
    from pvml.circuits.weights.composition import CompositionScore
    from pvml.circuits.weights.copying import CopyingScore

_COPYING = "copying"


@dataclass(frozen=True, kw_only=True)
class HeadsFlags(RowsFlags):
    """Score every head for each kind of attention, and for copying, beside its nulls.

    Kinds: previous-token, current-token, first-token, duplicate-token, induction, each watched on
    natural text and on random tokens that repeat; and copying, which is read off the weights.
    """

    kinds: Names = ()
    """Which kinds. Unset: all."""
    texts: Names = ()
    """What to watch them on: natural, repeated. Unset: both."""
    top: int = 5
    """How many heads of each kind are printed: those that earned the name, then the nearest to it.
    0: all."""
    n_random: int | None = None
    """Random heads in the place of each (at least 100); 0 leaves them out. Unset: 200."""
    plot: Path | None = None
    """A picture (.png or .svg) of a kind; of several, one for each, with the kind in its name."""


@dataclass(frozen=True, kw_only=True)
class CopyingFlags(CommonFlags):
    """Show which heads copy: the eigenvalues of their OV circuits, beside random heads'."""

    seed: int = 0
    """Draws the random heads."""
    plot: Path | None = None
    """A picture (.png or .svg): the eigenvalues in the complex plane, head by head."""


@dataclass(frozen=True, kw_only=True)
class ComposeFlags(CommonFlags):
    """Show which heads read what lower heads wrote: Q-, K- and V-composition beyond chance."""

    top: int = 10
    """How many pairs of each kind are shown; the others are counted."""
    seed: int = 0
    """Draws the random rotations between the heads of a pair."""
    plot: Path | None = None
    """A picture (.png or .svg): a graph of the heads, an arrow for each pair."""


def heads(word: str, flags: HeadsFlags) -> int:
    """Print each kind's scores; the exit code."""
    from typing import get_args

    from pvml.circuits.heads.names import NAMING
    from pvml.circuits.heads.patterns import Kind, Text
    from pvml.circuits.heads.random_heads import N_RANDOM
    from pvml.circuits.heads.scores import head_scores
    from pvml.circuits.weights.copying import copying_scores

    require_picture(flags.plot)
    known = (*get_args(Kind), _COPYING)
    kinds, texts = all_of(flags.kinds) or known, all_of(flags.texts) or get_args(Text)
    for flag, given, there in (("--kinds", kinds, known), ("--texts", texts, get_args(Text))):
        if not set(given) <= set(there):
            raise PvmlError(f"{flag} must be some of {', '.join(there)}; got {', '.join(given)}")
    if flags.top < 0:
        raise PvmlError(f"--top must be at least 1 head, or 0 for all, got {flags.top}")
    subject = Subject(word, flags.device)
    subject.require_layers("a score of heads")
    watched: list[Kind] = [kind for kind in get_args(Kind) if kind in kinds]
    on: list[Text] = [text for text in get_args(Text) if text in texts]
    rows = subject.rows(flags) if watched else None
    with waiting("watching every head"):
        scores = []
        if rows is not None:
            scores = head_scores(
                subject.model,
                rows.tokens,
                kinds=watched,
                texts=on,
                seed=flags.seed,
                n_random=N_RANDOM if flags.n_random is None else flags.n_random,
            )
        copies = copying_scores(subject.model, seed=flags.seed) if _COPYING in kinds else []
    groups = list(_groups(scores))
    drawn = _draw_heads(flags.plot, groups, copies)
    if flags.json:
        found = {
            **subject.told("heads"),
            "text": None if rows is None else rows.told(),
            "seed": flags.seed,
            "scores": [score_json(score) for score in scores],
            "copying": [copying_json(score) for score in copies],
            "pictures": [str(path) for path in drawn],
        }
        print_json(found)
        return 0
    say(subject.title)
    if rows is not None:
        say(told(str(rows)))
    for (kind, text), group in groups:
        say(f"\n{kind}, {'natural text' if text == 'natural' else 'random tokens that repeat'}")
        say(_head_rows(group, flags.top))
    if copies:
        say(f"\n{_COPYING} (sum of an OV circuit's eigenvalues over the sum of their sizes)")
        say(_copying_rows(copies, flags.top))
    if groups:
        say()
        say(
            told(
                "score: mean share of attention (0 to 1). shuffled: the same with the tokens "
                "shuffled, mean ± spread between sequences. random heads: in its place, mean ± "
                f"spread. {NAMING}."
            )
        )
    if drawn:
        say_drawn(*drawn)
    return 0


def copying(word: str, flags: CopyingFlags) -> int:
    """Print where every head's eigenvalues lie; the exit code."""
    from pvml.circuits.weights.copying import copying_scores, ov_eigenvalues
    from pvml.circuits.weights.maps import Reading
    from pvml.plots.eigenvalues import eigenvalue_planes, eigenvalue_text

    require_picture(flags.plot)
    subject = Subject(word, flags.device)
    subject.require_layers("a copying score")
    with waiting("drawing random heads"):
        scores = copying_scores(subject.model, seed=flags.seed)
        values = ov_eigenvalues(subject.model)
    if flags.plot:
        eigenvalue_planes(values, scores, flags.plot)
    holds = Reading(subject.model, "folded", biases=False).said("b_V", "ln1.b")
    if flags.json:
        found = {
            **subject.told("copying"),
            "seed": flags.seed,
            "holds": list(holds),
            "heads": [
                {
                    **copying_json(score),
                    "eigenvalues": [
                        [one.real, one.imag] for one in values[score.layer, score.head].tolist()
                    ],
                }
                for score in scores
            ],
            "pictures": [str(flags.plot)] if flags.plot else [],
        }
        print_json(found)
        return 0
    planes = eigenvalue_text(values, scores, width=width())
    say(f"{subject.title}\n\n{planes}")
    if left_out := sum({score.layer: score.null_undefined for score in scores}.values()):
        say(told(f"{left_out:,} random heads have no score (every eigenvalue is 0): left out."))
    say(told(f"Holds: {'; '.join(holds)}."))
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def compose(word: str, flags: ComposeFlags) -> int:
    """Print the pairs beyond random rotations, and how many are not; the exit code."""
    from pvml.circuits.weights.composition import composition_scores
    from pvml.circuits.weights.maps import Reading
    from pvml.plots.composition import composition_graph, composition_text

    require_picture(flags.plot)
    if flags.top < 1:
        raise PvmlError(f"--top must be at least 1 pair, got {flags.top}")
    subject = Subject(word, flags.device)
    subject.require_layers("composition", 2)
    with waiting("turning heads against each other"):
        scores = composition_scores(subject.model, seed=flags.seed)
    if flags.plot:
        composition_graph(scores, flags.plot)
    holds = Reading(subject.model, "folded", biases=False).said("b_Q", "b_K", "b_V", "ln1.b")
    if flags.json:
        found = {
            **subject.told("compose"),
            "seed": flags.seed,
            "holds": list(holds),
            "pairs": [composition_json(score) for score in scores],
            "pictures": [str(flags.plot)] if flags.plot else [],
        }
        print_json(found)
        return 0
    graph = composition_text(scores, most=flags.top, width=width())
    say(f"{subject.title}\n\n{graph}")
    say(told(f"Holds: {'; '.join(holds)}."))
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def score_json(score: "HeadScore") -> dict[str, Any]:
    """An attention score with its nulls and its verdict."""
    random = score.random
    return {
        "kind": score.kind,
        "text": score.text,
        "head": written((score.layer, score.head)),
        "score": score.score,
        "null_mean": score.null_mean,
        "null_spread": score.null_spread,
        "p": score.p,
        "random_mean": random.mean if random else None,
        "random_spread": random.spread if random else None,
        "random_p": random.p if random else None,
        "verdict": score.verdict,
        "beyond": score.beyond,
    }


def copying_json(score: "CopyingScore") -> dict[str, Any]:
    """A copying score with its null."""
    return {
        "head": written((score.layer, score.head)),
        "score": score.score,
        "null_mean": score.null_mean,
        "null_spread": score.null_spread,
        "null_undefined": score.null_undefined,
        "p": score.p,
        "beyond": score.beyond,
    }


def composition_json(score: "CompositionScore") -> dict[str, Any]:
    """A pair's score with its null."""
    return {
        "kind": score.kind,
        "writer": written(score.writer),
        "reader": written(score.reader),
        "score": score.score,
        "null_mean": score.null_mean,
        "null_spread": score.null_spread,
        "p": score.p,
        "beyond": score.beyond,
    }


def _groups(scores: "Sequence[HeadScore]") -> "Iterator[tuple[tuple[str, str], list[HeadScore]]]":
    """The scores of each kind and text, in their order."""
    for key in dict.fromkeys((score.kind, score.text) for score in scores):
        yield key, [score for score in scores if (score.kind, score.text) == key]


def _head_rows(scores: "Sequence[HeadScore]", top: int) -> str:
    best = sorted(scores, key=lambda s: (not s.beyond, -s.excess))
    shown = best[: max(top, sum(s.beyond for s in scores)) if top else None]
    lines = [
        (
            written((s.layer, s.head)),
            f"{s.score:.2f}",
            null_of(s.null_mean, s.null_spread),
            p_of(s.p),
            *(
                (null_of(s.random.mean, s.random.spread), p_of(s.random.p))
                if s.random
                else ("not asked", "")
            ),
            s.verdict,
        )
        for s in shown
    ]
    headings = ("head", "score", "shuffled", "p", "random heads", " p", "verdict")
    return table(headings, lines, ("head", "verdict")) + _others(len(scores) - len(shown))


def _copying_rows(scores: "Sequence[CopyingScore]", top: int) -> str:
    best = sorted(scores, key=lambda s: (not s.beyond, s.score is None, -(s.score or 0.0)))
    shown = best[: max(top, sum(s.beyond for s in scores)) if top else None]
    lines = [
        (
            written((s.layer, s.head)),
            "undefined" if s.score is None else f"{s.score:+z.2f}",
            null_of(s.null_mean, s.null_spread),
            p_of(s.p),
            "copies" if s.beyond else "explained by random heads",
        )
        for s in shown
    ]
    headings = ("head", "score", "random heads", "p", "verdict")
    return table(headings, lines, ("head", "verdict")) + _others(len(scores) - len(shown))


def _others(n: int) -> str:
    return f"\nand {n:,} heads further from it (--top 0 shows all)" if n else ""


def _draw_heads(
    path: Path | None,
    groups: "Sequence[tuple[tuple[str, str], Sequence[HeadScore]]]",
    copies: "Sequence[CopyingScore]",
) -> list[Path]:
    """The pictures asked for, one for each kind and text."""
    if path is None:
        return []
    from pvml.plots.head_scores import score_grids

    wanted: dict[str, Any] = {f"{kind}-{text}": group for (kind, text), group in groups}
    wanted |= {_COPYING: copies} if copies else {}
    if len(wanted) == 1:
        return [score_grids(scores, path) for scores in wanted.values()]
    return [
        score_grids(scores, path.with_stem(f"{path.stem}-{name}"))
        for name, scores in wanted.items()
    ]
