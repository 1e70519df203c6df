"""What `python -m pvml.circuits.two_routes` prints: the worked example, every number derived.

Positions are printed from 1, as in the post; percentages are true values, rounded.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from pvml.circuits import two_routes as tr

LABELS = [f"{i} {token}" for i, token in enumerate(tr.SEQUENCE, start=1)]
READER = 7
"""The post's position 8, the third `the`."""


def main() -> None:
    """Print the example from its tables to its prediction."""
    for part in (sentence, route_1, where, row_8, unmasked, what, sum_up, pattern, checks):
        part()
        print()


def grid(rows: Sequence[str], columns: Sequence[str], cell: Callable[[int, int], str]) -> None:
    """Print a table: a label for each row, then `cell(i, j)` under each column."""
    print(" " * 6 + "".join(f"{column:>7}" for column in columns))
    for i, row in enumerate(rows):
        print(f"{row:<6}" + "".join(f"{cell(i, j):>7}" for j in range(len(columns))))


def values(table: Tensor) -> Callable[[int, int], str]:
    return lambda i, j: f"{table[i, j]:.1f}"


def percent(share: Tensor) -> str:
    return f"{100 * share.item():.0f}%"


def sentence() -> None:
    print("One layer, one head, no MLP, no LayerNorm, no positions. The sentence:")
    print("  " + "   ".join(LABELS))
    print("logits at a position = route 1 (its own token) + route 2 (what the head reads)")


def route_1() -> None:
    print("ROUTE 1: the bigram table. Row: the token here. Column: a candidate for the next.")
    grid(tr.VOCABULARY, tr.VOCABULARY, values(tr.BIGRAM))
    for i, row in enumerate(tr.route_1()[:3]):
        (best, second), answer = row.topk(2)[0], tr.VOCABULARY[int(row.argmax())]
        verdict = "right" if answer == tr.SEQUENCE[i + 1] else f"wrong, it is {tr.SEQUENCE[i + 1]}"
        print(
            f"  after {' '.join(tr.SEQUENCE[: i + 1])!r}: row {tr.SEQUENCE[i]} answers {answer} "
            f"({best:.1f}; the next best has {second:.1f}): {verdict}"
        )


def where() -> None:
    print("ROUTE 2, where to look: scores. Row: the reader. Column: what it may read. x: masked.")
    scores = tr.scores()
    grid(LABELS, LABELS, lambda i, j: f"{scores[i, j]:.1f}" if j <= i else "x")
    print("A score depends on the two tokens only. This sentence fixes 30 of the 36 pairs;")
    ours = sorted(tr.OURS, key=lambda p: tuple(map(tr.VOCABULARY.index, p)))
    print("the other six are ours: " + ", ".join(f"{to} <- {source}" for to, source in ours))


def row_8() -> None:
    print("Position 8 through the softmax:")
    scores = tr.scores()[READER]
    powers, shares = scores.exp(), tr.attention()[READER]
    print(f"{'':6}{'score':>7}{'exp':>8}{'share':>16}")
    for j, label in enumerate(LABELS):
        score = f"{scores[j]:.1f}" if j <= READER else "x"
        division = f"{powers[j]:.2f} / {powers.sum():.2f}"
        print(f"{label:<6}{score:>7}{powers[j]:>8.2f}{division:>16} = {percent(shares[j])}")
    print(f"{'sum':<6}{'':7}{powers.sum():>8.2f}{'':16}   {percent(shares.sum())}")
    gap, factor = scores[1] - scores[5], powers[1] / powers[5]
    print(f"A lead of {gap:.1f} in score (cat over mat) is a factor of {factor:.2f} in attention.")


def unmasked() -> None:
    score, shares = tr.scores(masked=False)[READER, 8], tr.attention(masked=False)[READER]
    print(
        f"Were nothing masked, position 8 would score position 9 (its own answer) {score:.1f}:\n"
        f"positions 2 and 9 would tie at {100 * shares[1]:.1f}% and {100 * shares[8]:.1f}%."
    )


def what() -> None:
    print("ROUTE 2, what looking there adds: the OV table along the sentence.")
    grid(LABELS, tr.VOCABULARY, values(tr.OV[tr.token_ids()]))
    print("Its diagonal is heavy: look at a token, speak for that token. A copying head.")


def sum_up() -> None:
    print("Position 8, both routes:")
    shares, table = tr.attention()[READER], tr.OV[tr.token_ids()]
    cat, mat = tr.VOCABULARY.index("cat"), tr.VOCABULARY.index("mat")
    for j, candidate in ((1, cat), (5, mat)):
        added, total = shares[j] * table[j, candidate], tr.route_2()[READER, candidate]
        print(
            f"  reading {LABELS[j]!r}: {shares[j]:.2f} x {table[j, candidate]:.1f} = {added:+.2f} "
            f"to {tr.VOCABULARY[candidate]}; all other positions together {total - added:+.2f}"
        )
    routes = tr.at(READER)
    print(f"{'':8}{'route 1':>9}{'route 2':>9}{'total':>9}")
    for token in tr.VOCABULARY:
        direct, head = (route[token] for route in routes)
        print(f"{token:<8}{direct:>9.2f}{head:>+9.2f}{direct + head:>9.2f}")
    answers = [tr.VOCABULARY[int(x[READER].argmax())] for x in (tr.route_1(), tr.logits())]
    print(f"Route 1 alone answers {answers[0]}; with route 2 the answer is {answers[1]}.")


def pattern() -> None:
    print("The whole pattern A: every row of scores through its softmax.")
    shares = tr.attention()
    grid(LABELS, LABELS, lambda i, j: percent(shares[i, j]) if j <= i else "x")
    print(f"A[8,2] = {percent(shares[7, 1])}: position 8 reads position 2. A[2,8] is masked.")
    print("Rows share out 100%. Columns need not; theirs add up to:")
    print("  " + "  ".join(map(percent, shares.sum(0))))
    later = [i for i in range(2, len(LABELS)) if shares[i, 1] == shares[i].max()]
    most = [i for i in later if tr.SEQUENCE[i] == "the"]
    readers = " and ".join(f"position {i + 1} ({percent(shares[i, 1])})" for i in most)
    print(f"Down column 2 (cat): {readers} read it most. Position 5 cannot see mat yet.")


def checks() -> None:
    by_formula = (tr.formula() - tr.logits()).abs().max()
    by_model = (tr.as_model()(tr.token_ids()[None])[0] - tr.logits()).abs().max()
    print("T = Id x W_U W_E + A x (W_U W_OV W_E), x the tensor product, (A x B) t = A t B^T:")
    print(f"  on the one-hot sentence it differs from the sums above by {by_formula:.0e} at most,")
    print(f"  and a Transformer with these tables for weights by {by_model:.0e}.")
