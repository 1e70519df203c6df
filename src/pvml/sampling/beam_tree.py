"""Drawings of a beam search, for the terminal."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from rich.text import Text
from rich.tree import Tree

from pvml.sampling.beam_record import Candidate, Search

Decode = Callable[[Sequence[int]], str]
"""From token ids to their text, such as `tokenizer.decode`."""
_END_SHOWN = 36
"""Characters of a text's end in a line about one candidate."""


def draw_texts(search: Search, decode: Decode) -> Tree:
    """The tree that the results form: what they share stands once, above what they differ in.

    A line has the sum of log-probabilities up to its end (nats) and the text that it adds; a
    result's also has its rank, and its score where that is not the sum. Dim lines are beams that
    were carried along and led to no result.
    """
    children: defaultdict[Candidate | None, list[Candidate]] = defaultdict(list)
    for step in search.steps:
        for candidate in step:
            if candidate.fate != "dropped":
                children[candidate.parent].append(candidate)
    leading = {candidate for result in search.results for candidate in result.line}
    ranks = {result: rank for rank, result in enumerate(search.results, start=1)}

    def grow(branch: Tree, stretch: list[Candidate]) -> None:
        """Add a line for what has no fork: the stretch and all that follows it up to the next."""
        given_up: list[Candidate] = []
        while True:
            following = children[stretch[-1] if stretch else None]
            given_up += [child for child in following if child not in leading]
            forks = [child for child in following if child in leading]
            if len(forks) != 1:
                break
            stretch += forks
        if stretch:
            branch = branch.add(_stretch_line(search, stretch, decode, ranks.get(stretch[-1])))
        for child in given_up:
            branch.add(_given_up_line(child, children, decode))
        for child in forks:
            grow(branch, [child])

    tree = Tree(_headline(search, decode), guide_style="dim")
    grow(tree, [])
    return tree


def draw_steps(search: Search, decode: Decode, first: int | None = None) -> Tree:
    """All that was considered, step by step, largest sum first.

    A line has the sum of log-probabilities, the last token's own (nats), the fate, and the end of
    the text. first: show so many steps.
    """
    tree = Tree(_headline(search, decode), guide_style="dim")
    for number, step in enumerate(search.steps[:first], start=1):
        beams = len({candidate.parent for candidate in step})
        plural = "s" if beams > 1 else ""
        branch = tree.add(f"step {number}: {len(step)} candidates from {beams} beam{plural}")
        for candidate in step:
            text = decode(candidate.ids)
            end = text if len(text) <= _END_SHOWN else "..." + text[-_END_SHOWN:]
            numbers = f"{candidate.logprob_sum:8.3f} {candidate.logprob:8.3f}"
            branch.add(_line(f"{numbers}  {candidate.fate:<8}{end!r}", candidate.fate == "dropped"))
    return tree


def _headline(search: Search, decode: Decode) -> Text:
    start = decode(search.prompt[search.args.prepend_bos :])
    considered = sum(map(len, search.steps))
    return Text(
        f"{start!r}: {search.args.num_beams} beams, {len(search.steps)} steps, "
        f"{considered} candidates"
    )


def _stretch_line(
    search: Search, stretch: list[Candidate], decode: Decode, rank: int | None
) -> Text:
    end = stretch[-1]
    added = decode([candidate.token for candidate in stretch])
    line = Text(f"{end.logprob_sum:8.3f}  {added!r}")
    if rank is not None:
        score = "" if search.args.length_penalty == 0 else f", score {search.score(end):.3f}"
        line.append(f"  #{rank}{score}", style="bold")
    return line


def _given_up_line(
    start: Candidate, children: dict[Candidate | None, list[Candidate]], decode: Decode
) -> Text:
    """A beam that led to no result: its longest text, the likeliest of these."""
    ends, longest = [start], start
    while ends:
        longest = ends[0]
        ends = [child for end in ends for child in children.get(end, [])]
    tokens = [candidate.token for candidate in longest.line[start.length - 1 :]]
    first, last = start.length, longest.length
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return _line(f"{longest.logprob_sum:8.3f}  {steps}: {decode(tokens)!r}", dim=True)


def _line(text: str, dim: bool) -> Text:
    return Text(text, style="dim" if dim else "", no_wrap=True, overflow="ellipsis")
