"""Which runs are drawn together: those of one corpus, n_ctx and tokenizer; and what it is called.

A corpus is its documents, told by their fingerprint: two files of one name are two corpora.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TypeVar

from pvml.plots.charts import ACROSS, Chart, charts_of
from pvml.plots.curves import RunCurves

Key = TypeVar("Key", bound=Hashable)
_DIGITS = 8
"""Of a fingerprint, where nothing else tells two corpora apart."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Charts of some runs that belong together."""

    ending: str
    """What their files' names end in; no other page's."""
    title: str
    charts: Sequence[Chart]
    runs: Sequence[RunCurves]
    mixed: bool = False
    """Whether the runs differ in n_ctx or tokenizer, which the legend then tells."""


def pages_of(runs: Iterable[RunCurves]) -> list[Page]:
    """A page for each kind of run, and one for all of a corpus that has several kinds."""
    pages: list[Page] = []

    def add(words: Sequence[str], title: str, alike: list[RunCurves], mixed: bool = False) -> None:
        ending = _unused(_file_name(*words), {page.ending for page in pages})
        charts = ACROSS if mixed else charts_of(alike)
        pages.append(Page(ending=ending, title=title, charts=charts, runs=alike, mixed=mixed))

    for _, of_name in _grouped(runs, lambda run: run.corpus):
        corpora = _grouped(of_name, partial(_fingerprint, among=of_name))
        for corpus, of_corpus in zip(_told_apart(corpora), corpora, strict=True):
            about = f"{corpus}, " if corpus else ""
            kinds = _grouped(of_corpus[1], lambda run: (run.n_ctx, run.tokenizer))
            for (n_ctx, tokenizer), alike in kinds:
                title = f"{about}n_ctx {n_ctx}, tokenizer {tokenizer}"
                add((corpus, f"ctx{n_ctx}", tokenizer), title, alike)
            if len(kinds) > 1:
                title = f"{about}each document alone, in windows of the run's n_ctx"
                add((corpus, "all"), title, of_corpus[1], mixed=True)
    return pages


def _fingerprint(run: RunCurves, among: Sequence[RunCurves]) -> str:
    """The run's; if it recorded none, that of the others from its source, if they agree."""
    if run.fingerprint:
        return run.fingerprint
    others = {x.fingerprint for x in among if x.fingerprint and run.source in ("", x.source)}
    return others.pop() if len(others) == 1 else ""


def _told_apart(corpora: Sequence[tuple[str, list[RunCurves]]]) -> list[str]:
    """What corpora of one name are called: as much of where they come from as tells them apart."""
    if len(corpora) == 1:
        return [corpora[0][1][0].corpus]
    told = [next((run.source for run in runs if run.source), "") for _, runs in corpora]
    sources = [PurePath(source).parts or (corpora[0][1][0].corpus,) for source in told]
    for length in range(1, max(map(len, sources)) + 1):
        names = ["/".join(parts[-length:]) for parts in sources]
        if len(set(names)) == len(names):
            return names
    return [
        f"{'/'.join(parts[-2:])} ({fingerprint[:_DIGITS] or 'no fingerprint'})"
        for parts, (fingerprint, _) in zip(sources, corpora, strict=True)
    ]


def _grouped(
    runs: Iterable[RunCurves], key: Callable[[RunCurves], Key]
) -> list[tuple[Key, list[RunCurves]]]:
    groups: dict[Key, list[RunCurves]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return sorted(groups.items())


def _file_name(*words: str) -> str:
    plain = (re.sub(r"[^\w.-]+", "-", word.replace(":", "")).strip("-.") for word in words)
    return "-".join(filter(None, plain))


def _unused(name: str, used: set[str]) -> str:
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name}-{number}"
    return found
