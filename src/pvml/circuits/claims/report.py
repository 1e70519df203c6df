"""All claims about a model as a page, and as a file that they can be read back from.

Where nothing is claimed the page says so, with the nearest misses beside their nulls.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jaxtyping import Int
from torch import Tensor

from pvml.atomic import write_whole
from pvml.circuits.chance import SIGNIFICANCE
from pvml.circuits.claims.as_json import decode, encode
from pvml.circuits.claims.claim import FORMAT, Claim, ClaimCheck, ClaimKind
from pvml.circuits.claims.inputs import (
    ClaimInputs,
    ClaimSettings,
    ModelIdentity,
    Subject,
    opened,
)
from pvml.circuits.claims.search import KINDS, ClaimSearch, lacks, measured_again
from pvml.circuits.heads.names import NAMING
from pvml.circuits.induction.study import LEGEND, study_induction
from pvml.errors import PvmlError
from pvml.runs.json_object import read_json, to_json

JSON, MARKDOWN, HTML = "claims.json", "claims.md", "claims.html"
"""The files of a report."""
N_MISSES = 3
"""Of each kind."""
_HEADINGS: dict[ClaimKind, str] = {
    "previous-token": "Previous-token heads",
    "induction": "Induction heads",
    "copying": "Copying heads",
    "composition": "Composition of heads",
}
RULES = (
    f"{NAMING}. A head that copies, and a pair that composes, is claimed for a score beyond its "
    f"null alone (p of at most {SIGNIFICANCE}, times the number of scores tried)."
)
"""What is claimed, in words."""
_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
    "pre{white-space:pre-wrap;background:#f4f4f4;padding:1em}li li{color:#444}"
)


@dataclass(frozen=True, kw_only=True)
class Misses:
    """The scores of one kind that came nearest to a claim, their nulls beside them."""

    kind: ClaimKind
    scores: tuple[str, ...]
    """In words, the nearest first, each with what it lacks."""
    n_scores: int
    """How many there are, claims included."""


@dataclass(frozen=True, kw_only=True)
class ClaimReport:
    """Everything that is claimed of a model, and what is not but nearly was."""

    model: ModelIdentity
    inputs: ClaimInputs
    settings: ClaimSettings
    claims: tuple[Claim, ...]
    misses: tuple[Misses, ...]
    """One for each kind that was looked for."""
    circuit: str
    """The induction circuit, as `study_induction` tells of it; empty if it was not asked."""

    def to_json(self) -> str:
        """The report as one JSON object, from which `from_json` gives an equal one."""
        saved = encode(self)
        saved["claims"] = [json.loads(claim.to_json()) for claim in self.claims]
        return to_json({"format": FORMAT, **saved}, indent=1)

    @classmethod
    def read(cls, path: Path) -> "ClaimReport":
        """The report that `write` put into a file; its claims can be checked.

        Raises: RunDirError naming the file if it is missing or damaged; PvmlError for what is no
            report.
        """
        saved = read_json(path)
        if saved.pop("format", None) != FORMAT or not isinstance(saved.get("claims"), list):
            raise PvmlError(f"{path} is no report that this version reads: no format {FORMAT}")
        claims = [
            Claim.from_saved(claim, f"{path}: claim {i}") for i, claim in enumerate(saved["claims"])
        ]
        rest = decode(cls, {**saved, "claims": []}, str(path))
        for i, claim in enumerate(claims):
            for name in ("model", "inputs", "settings"):
                if getattr(claim, name) != getattr(rest, name):
                    raise PvmlError(
                        f"{path} is damaged: the {name} of claim {i} is not that of the report"
                    )
        return cls(**{**vars(rest), "claims": tuple(claims)})

    def is_about(self, model: Subject) -> bool:
        """Whether these are the weights that the report was made on."""
        return ModelIdentity.of(opened(model)).weights == self.model.weights

    def check(
        self, model: Subject, tokens: Int[Tensor, "batch posn"] | None = None
    ) -> Iterator[ClaimCheck]:
        """Each claim measured again, as `Claim.check` does it; what they share is measured once.

        tokens: the rows, where the claims were made on rows that were given.

        Raises: PvmlError for what is no model, or where rows have to be given or are others.
        """
        subject = opened(model)
        found, search = ModelIdentity.of(subject), None
        for claim in self.claims:
            if found.config != claim.model.config:
                yield ClaimCheck(claim=claim, model=found, again=None)
                continue
            if search is None or (claim.inputs, claim.settings) != (search.inputs, search.settings):
                rows = claim.inputs.rows(subject, tokens)
                search = ClaimSearch(subject, rows, settings=claim.settings, inputs=claim.inputs)
            yield ClaimCheck(claim=claim, model=found, again=measured_again(claim, search))

    def to_markdown(self) -> str:
        """The report as a page."""
        parts = [f"# {_plain(self._title)}", *map(_plain, self._about)]
        for heading, lines in self._sections():
            parts.append(f"## {_plain(heading)}")
            parts.append("\n".join(f"{'  ' * depth}- {_plain(line)}" for depth, line in lines))
        if self.circuit:
            parts += ["## The induction circuit", _fenced(self.circuit), _plain(LEGEND)]
        return "\n\n".join(parts) + "\n"

    def to_html(self) -> str:
        """The same page for a browser, complete in itself."""
        body = [f"<h1>{escape(self._title)}</h1>"]
        body += [f"<p>{escape(line)}</p>" for line in self._about]
        for heading, lines in self._sections():
            body.append(f"<h2>{escape(heading)}</h2>")
            body.append(_nested(lines))
        if self.circuit:
            body.append(f"<h2>The induction circuit</h2>\n<pre>{escape(self.circuit)}</pre>")
            body.append(f"<p>{escape(LEGEND)}</p>")
        return "\n".join(
            [
                "<!DOCTYPE html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head><body>",
                *body,
                "</body></html>\n",
            ]
        )

    def write(self, folder: Path) -> list[Path]:
        """Put the three files into a folder, each whole or not at all; where they are.

        Raises: RunDirError naming the file if the disk refuses.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PvmlError(f"{folder} cannot be made a folder: {error.strerror}") from error
        pages = {JSON: self.to_json(), MARKDOWN: self.to_markdown(), HTML: self.to_html()}
        for name, text in pages.items():
            write_whole(folder / name, text)
        return [folder / name for name in pages]

    @property
    def _title(self) -> str:
        return f"What is claimed of {self.model.name or 'a model without a name'}"

    @property
    def _about(self) -> list[str]:
        cfg, numbers = self.model.config, self.settings
        mlps = "attention only" if cfg.attn_only else "with MLPs"
        n = len(self.claims)
        return [
            f"{n} claim{'' if n == 1 else 's'}." if n else "Nothing is claimed.",
            RULES,
            "±: the spread (standard deviation) of a null: between sequences for shuffled tokens, "
            "between heads for random and for other heads, between rotations.",
            f"Model: {cfg.n_layers} layers of {cfg.n_heads} heads, {mlps}, positions "
            f"{cfg.positions}, normalization {cfg.normalization}; weights {self.model.weights}.",
            f"Inputs: {self.inputs}.",
            f"Seed {numbers.seed}, {numbers.n_sequences} sequences, {numbers.n_random} random "
            f"heads in attention and {numbers.n_copying} in copying, {numbers.n_rotations} "
            f"rotations in composition.",
        ]

    def _sections(self) -> list[tuple[str, list[tuple[int, str]]]]:
        """Headings with lines, each of which stands so deep."""
        sections = []
        for misses in self.misses:
            claims = [claim for claim in self.claims if claim.kind == misses.kind]
            lines = []
            for claim in claims:
                first, *rest = str(claim).splitlines()
                lines += [(0, first), *((1, line.strip()) for line in rest)]
            if not claims:
                lines.append((0, f"Nothing is claimed: none of {misses.n_scores} scores is one."))
            if misses.scores:
                lines += [(0, "Nearest misses:"), *((1, score) for score in misses.scores)]
            sections.append((_HEADINGS[misses.kind], lines))
        return sections


def report_claims(
    model: Subject,
    tokens: Int[Tensor, "batch posn"] | None = None,
    *,
    bos: int | None = None,
    settings: ClaimSettings | None = None,
    kinds: Sequence[ClaimKind] = KINDS,
    circuit: bool = True,
) -> ClaimReport:
    """All that is claimed of a model, of these kinds, and the nearest misses.

    tokens, bos: as `induction` of `claiming` has them. circuit: also study the induction circuit,
    which looks for its heads once more.

    Raises: PvmlError for what is no model, an unknown kind or none, or rows or a model too short to
        ask.
    """
    if not kinds or not set(kinds) <= set(KINDS):
        raise PvmlError(f"kinds must be some of {', '.join(KINDS)}; got {list(kinds)}")
    search = ClaimSearch(model, tokens, bos=bos, settings=settings)
    misses = []
    for kind in kinds:
        scores = search.scores(kind)
        nearest = [score for score in scores if not score.beyond][:N_MISSES]
        told = tuple(f"{score}: {lacks(score)}" for score in nearest)
        misses.append(Misses(kind=kind, scores=told, n_scores=len(scores)))
    numbers = search.settings
    study = ""
    if circuit and search.subject.model.cfg.n_layers:
        study = str(
            study_induction(
                search.subject.model,
                search.rows,
                natural=search.inputs.made != "random",
                n_sequences=numbers.n_sequences,
                n_random=numbers.n_random,
                seed=numbers.seed,
            )
        )
    return ClaimReport(
        model=search.identity,
        inputs=search.inputs,
        settings=numbers,
        claims=tuple(claim for kind in kinds for claim in search.claims(kind)),
        misses=tuple(misses),
        circuit=study,
    )


def _plain(text: str) -> str:
    """A line of text that Markdown leaves as it is."""
    return re.sub(r"([\\`*_>\[\]|#]|<(?! ))", r"\\\1", " ".join(text.split()))


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _nested(lines: Sequence[tuple[int, str]]) -> str:
    """Lines of depth 0 or 1 as lists."""
    html = ["<ul>"]
    for i, (depth, line) in enumerate(lines):
        deeper = i + 1 < len(lines) and lines[i + 1][0] > depth
        last_of_inner = depth and (i + 1 == len(lines) or not lines[i + 1][0])
        html.append(f"<li>{escape(line)}" + ("<ul>" if deeper else "</li>"))
        if last_of_inner:
            html.append("</ul></li>")
    return "\n".join([*html, "</ul>"])
