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

    A line has the sum of log-probabilities up to its end (nats) and the text that it adds to the
    line it hangs from. One with "then" adds it to the line before it on its own level instead, so
    that a long text does not drift to the right where a beam forks off. A result's line also has
    its rank, and its score where that is not the sum. Dim lines, with their steps, are beams that
    were carried along and led to no result.
    """
    children: defaultdict[Candidate | None, list[Candidate]] = defaultdict(list)
    for step in search.steps:
        for candidate in step:
            if candidate.fate != "dropped":
                children[candidate.parent].append(candidate)
    leading = {candidate for result in search.results for candidate in result.line}
    ranks = {result: rank for rank, result in enumerate(search.results, start=1)}

    def part(branch: Tree, end: Candidate | None) -> list[Candidate]:
        """Hang what is given up after end from its line; what goes on is given back."""
        for child in children[end]:
            if child not in leading:
                branch.add(_given_up_line(child, children, decode))
        return [child for child in children[end] if child in leading]

    def grow(branch: Tree, end: Candidate) -> None:
        """Add the lines of a text from one token on, and all that parts from it."""
        before, link = end.parent, ""
        while True:
            while len(children[end]) == 1:
                end = children[end][0]
            piece = branch.add(_piece_line(search, before, end, decode, link, ranks.get(end)))
            parts = part(piece, end)
            if len(parts) != 1:
                break
            before, end, link = end, parts[0], "then "
        for child in parts:
            grow(piece, child)

    tree = Tree(_headline(search, decode), guide_style="dim")
    for child in part(tree, None):
        grow(tree, child)
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


def _piece_line(
    search: Search,
    before: Candidate | None,
    end: Candidate,
    decode: Decode,
    link: str,
    rank: int | None,
) -> Text:
    added = _added(before, end, decode, whole=rank is not None)
    line = Text(f"{end.logprob_sum:8.3f}  {link}{added!r}")
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
        longest = max(ends, key=lambda end: end.logprob_sum)
        ends = [child for end in ends for child in children.get(end, [])]
    added = _added(start.parent, longest, decode, whole=True)
    first, last = start.length, longest.length
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return _line(f"{longest.logprob_sum:8.3f}  {steps}: {added!r}", dim=True)


def _added(before: Candidate | None, end: Candidate, decode: Decode, *, whole: bool) -> str:
    """What end's text has more than before's.

    whole: nothing follows; else a character that is not complete yet is left to what does.
    """
    known = _complete(decode(before.ids)) if before else ""
    text = decode(end.ids)
    return (text if whole else _complete(text))[len(known) :]


def _complete(text: str) -> str:
    """Without U+FFFD at the end: the first bytes of a character that later tokens complete."""
    return text.rstrip("\ufffd")


def _line(text: str, dim: bool) -> Text:
    return Text(text, style="dim" if dim else "", no_wrap=True, overflow="ellipsis")
