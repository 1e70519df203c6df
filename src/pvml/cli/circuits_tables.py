"""`pvml circuits MODEL ov | qk | bigram | survey`: circuits over the whole vocabulary."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pvml.cli.circuits_output import (
    print_json,
    progress,
    require_picture,
    say,
    say_drawn,
    table,
    told,
    width,
)
from pvml.cli.circuits_subject import CommonFlags, Subject, Tokens, Words
from pvml.errors import PvmlError

if TYPE_CHECKING:
    from pvml.circuits.weights.maps import Circuit
    from pvml.circuits.weights.scales import TypicalScale
    from pvml.circuits.weights.streamed import Diagonal, Top

_CHAIN = tyro.conf.arg(metavar="HEAD[>HEAD...]")
_MOST = 1_000
"""Entries that are shown."""
_SIDE = 16
"""Rows and columns up to which a picture has the numbers written in."""


@dataclass(frozen=True, kw_only=True)
class TableFlags(CommonFlags):
    """What the circuits have in common."""

    top: int = 10
    """How many entries: of the whole table, or of each token that was given."""
    lowest: bool = False
    """Those furthest below 0, not the largest."""
    biases: bool = False
    """Include the biases that come with tokens."""
    norms: str = "folded"
    """LayerNorms: folded (their w and centring belong to the products) or ignored."""
    plot: Path | None = None
    """A picture (.png or .svg) of the entries at the tokens shown."""


@dataclass(frozen=True, kw_only=True)
class OvFlags(TableFlags):
    """Show what reading a token adds to the logits: a head's OV circuit over the vocabulary.

    Without tokens: the strongest entries of the whole table, streamed. With `--read` or `--write`
    or both: these tokens' entries.
    """

    heads: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="HEAD[>HEAD...]")]
    """The head (layer.head), or a virtual head in quotes, the lowest first: "0.3>1.4"."""
    read: Tokens = ()
    """Tokens that are read, such as ' cat' ' dog'."""
    write: Tokens = ()
    """Tokens whose logits are changed."""


@dataclass(frozen=True, kw_only=True)
class QkFlags(TableFlags):
    """Show which token looks for which: a head's QK circuit over the vocabulary.

    Without tokens: the strongest entries of the whole table, streamed. With `--query` or `--key` or
    both: these tokens' entries.
    """

    head: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="HEAD")]
    """The head: layer.head, such as 1.4."""
    query: Tokens = ()
    """Tokens that look, such as ' cat' ' dog'."""
    key: Tokens = ()
    """Tokens that are looked at."""
    queries_through: Annotated[str | None, _CHAIN] = None
    """Heads of lower layers that the queries came by, such as 0.3; several in quotes, the lowest
    first: "0.3>1.4". Q-composition."""
    keys_through: Annotated[str | None, _CHAIN] = None
    """The same for the keys: K-composition, as an induction head has it."""
    scaled: bool = False
    """Divide by sqrt(d_head), as attention does."""


@dataclass(frozen=True, kw_only=True)
class BigramFlags(TableFlags):
    """Show what a token alone says about the next: the direct path from embedding to logits.

    Without tokens: the strongest entries of the whole table, streamed. With `--read` or `--write`
    or both: these tokens' entries.
    """

    read: Tokens = ()
    """Tokens that are read, such as ' cat' ' dog'."""
    write: Tokens = ()
    """Tokens that come next."""


@dataclass(frozen=True, kw_only=True)
class SurveyFlags(CommonFlags):
    """Scan every head's OV and QK circuit over the vocabulary; keep what is largest in a folder.

    A survey that was stopped goes on where it was if the same command is given again.
    """

    out: Path
    """The folder: a new one, or that of this survey."""
    only: str = "*"
    """Which circuits: a name or a pattern, such as "OV 0.*" or "QK 1.3"."""
    top: int = 10
    """How many entries of each row, and of each table, are kept."""


def ov(word: str, flags: OvFlags) -> int:
    """Print a head's OV circuit; the exit code."""
    from pvml.circuits.weights.maps import ov as circuit_of

    subject = _subject(word, flags)
    heads = subject.heads_in_a_row(flags.heads)
    circuit = circuit_of(subject.model, *heads, norms=_norms(flags), biases=flags.biases)
    return _show(subject, circuit, flags, "ov", ("--read", flags.read), ("--write", flags.write))


def qk(word: str, flags: QkFlags) -> int:
    """Print a head's QK circuit; the exit code."""
    from pvml.circuits.weights.maps import qk as circuit_of

    subject = _subject(word, flags)
    through = (flags.queries_through, flags.keys_through)
    of_queries, of_keys = ([] if one is None else subject.heads_in_a_row(one) for one in through)
    circuit = circuit_of(
        subject.model,
        subject.head(flags.head),
        queries_through=of_queries,
        keys_through=of_keys,
        scaled=flags.scaled,
        norms=_norms(flags),
        biases=flags.biases,
    )
    return _show(subject, circuit, flags, "qk", ("--query", flags.query), ("--key", flags.key))


def bigram(word: str, flags: BigramFlags) -> int:
    """Print the direct path; the exit code."""
    from pvml.circuits.weights.maps import bigram as circuit_of

    subject = _subject(word, flags)
    circuit = circuit_of(subject.model, norms=_norms(flags), biases=flags.biases)
    sides = ("--read", flags.read), ("--write", flags.write)
    return _show(subject, circuit, flags, "bigram", *sides)


def survey(word: str, flags: SurveyFlags) -> int:
    """Scan what is missing, and print what was found; the exit code."""
    from pvml.circuits.weights.surveys import survey as survey_of

    subject = Subject(word, flags.device)
    subject.require_layers("a survey")
    with progress() as tell:
        found = survey_of(subject.model, flags.out, top=flags.top, only=flags.only, tell=tell)
    missing = found.missing
    shown = [found[name] for name in found.matching(flags.only)]
    if flags.json:
        print_json(
            {
                **subject.told("survey"),
                "folder": str(found.path),
                "circuits": len(found.names),
                "missing": missing,
                "scanned": [
                    {
                        "name": one.name,
                        "largest": float(one.values[0]),
                        "row": subject.texts[int(one.rows[0])],
                        "column": subject.texts[int(one.columns[0])],
                        "favours_itself": one.favours_itself,
                    }
                    for one in shown
                ],
            }
        )
        return 0
    from pvml.plots.terminal import number

    say(f"{subject.title}\n")
    lines = [
        (
            one.name,
            number(float(one.values[0]), abs(float(one.values[0]))),
            repr(subject.texts[int(one.rows[0])]),
            repr(subject.texts[int(one.columns[0])]),
            f"{one.favours_itself:.1%}",
        )
        for one in shown
    ]
    headings = ("circuit", "largest", "row", "column", "favour themselves")
    say(table(headings, lines, ("circuit", "row", "column")))
    say()
    say(
        told(
            f"{found.path}: all {len(shown)} circuits that {flags.only!r} asks for are scanned; "
            f"the folder has {len(found.names) - len(missing)} of the model's {len(found.names)}"
        )
    )
    if subject.model.cfg.normalization == "LN":
        say(
            told(
                "Entries: OV nats × 2 stds, QK q · k × 2 stds, since LayerNorms' 1/std is left out"
            )
        )
    return 0


def _subject(word: str, flags: TableFlags) -> Subject:
    """The model, once the flags make sense."""
    require_picture(flags.plot)
    if flags.top < 1:
        raise PvmlError(f"--top must be at least 1 entry, got {flags.top}")
    if flags.top > _MOST:
        raise PvmlError(f"--top must be at most {_MOST:,} entries, got {flags.top}")
    return Subject(word, flags.device)


def _norms(flags: TableFlags) -> Any:
    if flags.norms not in ("folded", "ignored"):
        raise PvmlError(f"--norms must be folded or ignored, got {flags.norms!r}")
    return flags.norms


def _show(
    subject: Subject,
    circuit: "Circuit",
    flags: TableFlags,
    command: str,
    across: tuple[str, Words],
    down: tuple[str, Words],
) -> int:
    """Print the strongest entries, or those of the tokens that were given; the exit code."""
    from pvml.circuits.weights.scales import unit_of

    rows, columns = (subject.tokens_of(words, flag) for flag, words in (across, down))
    found = {
        **subject.told(command),
        "circuit": circuit.name,
        "shape": list(circuit.map.shape),
        "holds": list(circuit.holds),
    }
    scale = subject.typical_scale(circuit)
    found["unit"] = unit_of(circuit)
    found["left_out"] = list(circuit.left_out)
    found["typical_scale"] = None if scale is None else asdict(scale)
    whole = None
    if not rows and not columns:
        best, diagonal = _scanned(circuit, flags)
        sign = -1.0 if flags.lowest else 1.0
        whole = [
            (row, column, sign * value)
            for row, column, value in zip(
                best.rows.tolist(), best.columns.tolist(), best.values.tolist(), strict=True
            )
        ]
        own = 0.0 if diagonal is None else float((diagonal.ranks == 0).double().mean())
        found["favours_itself"] = None if diagonal is None else own
        rows = list(dict.fromkeys(row for row, _, _ in whole))[:_SIDE]
        columns = list(dict.fromkeys(column for _, column, _ in whole))[:_SIDE]
    elif not columns:
        columns = _strongest(circuit, rows, flags, by_row=True)
    elif not rows:
        rows = _strongest(circuit, columns, flags, by_row=False)
    if flags.plot:
        from pvml.plots.excerpts import excerpt_map

        excerpt_map(circuit, rows, columns, flags.plot, texts=subject.texts, scale=scale)
    if flags.json:
        found["entries"] = [
            {
                "row": subject.texts[row],
                "row_id": row,
                "column": subject.texts[column],
                "column_id": column,
                "value": value,
            }
            for row, column, value in (whole or _entries(circuit, rows, columns))
        ]
        found["pictures"] = [str(flags.plot)] if flags.plot else []
        print_json(found)
        return 0
    if whole is None:
        from pvml.plots.excerpts import excerpt_text

        shown = excerpt_text(
            circuit, rows, columns, texts=subject.texts, scale=scale, width=width()
        )
        say(f"{subject.title}\n\n{shown}")
    else:
        say(f"{subject.title}\n")
        _say_whole(subject, circuit, flags, whole, found["favours_itself"], scale)
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def _scanned(circuit: "Circuit", flags: TableFlags) -> "tuple[Top, Diagonal | None]":
    """The strongest entries of the whole table; and the diagonal, where the largest are asked."""
    from pvml.circuits.weights.factored import FactoredMap
    from pvml.circuits.weights.streamed import Diagonal, Top, scan

    best = Top(flags.top)
    with progress() as tell:

        def telling(done: int, of: int) -> None:
            tell(f"rows of {circuit.name}", done, of)

        if flags.lowest:
            below = FactoredMap(-circuit.map.left, circuit.map.right)
            scan(below, best, tell=telling)
            return best, None
        diagonal = Diagonal()
        scan(circuit.map, best, diagonal, tell=telling)
    return best, diagonal


def _strongest(circuit: "Circuit", ids: list[int], flags: TableFlags, *, by_row: bool) -> list[int]:
    """What answers some rows or columns most, each in turn."""
    chosen: dict[int, None] = {}
    for one in ids:
        line = circuit.map.rows([one])[0] if by_row else circuit.map.columns([one])[:, 0]
        k = min(flags.top, len(line))
        chosen |= dict.fromkeys(line.topk(k, largest=not flags.lowest).indices.tolist())
    return list(chosen)


def _entries(
    circuit: "Circuit", rows: list[int], columns: list[int]
) -> list[tuple[int, int, float]]:
    pairs = [(row, column) for row in rows for column in columns]
    values = circuit.map.entries([row for row, _ in pairs], [column for _, column in pairs])
    return [(*pair, value) for pair, value in zip(pairs, values.tolist(), strict=True)]


def _say_whole(
    subject: Subject,
    circuit: "Circuit",
    flags: TableFlags,
    entries: Sequence[tuple[int, int, float]],
    favours_itself: float | None,
    scale: "TypicalScale | None",
) -> None:
    from pvml.circuits.weights.scales import unit_of, what_is_left_out
    from pvml.plots.terminal import number

    which = "lowest" if flags.lowest else "largest"
    n_rows, n_columns = circuit.map.shape
    say(f"{circuit.name}: the {len(entries)} {which} of {n_rows:,} x {n_columns:,} entries")
    qk_circuit = circuit.name.startswith("QK")
    headings = (*(("query", "key") if qk_circuit else ("read", "written")), unit_of(circuit))
    largest = max(abs(value) for _, _, value in entries)
    lines = [
        (repr(subject.texts[row]), repr(subject.texts[column]), number(value, largest))
        for row, column, value in entries
    ]
    say(table(headings, lines, headings[:2]))
    if favours_itself is not None:
        what = "look for themselves most" if qk_circuit else "make themselves likeliest"
        say(f"{favours_itself:.1%} of all tokens {what} (by chance {1 / n_columns:.2%})")
    if left_out := what_is_left_out(circuit, scale):
        say(told(left_out))
    say(told(f"Holds: {'; '.join(circuit.holds) or 'nothing is left out'}."))
