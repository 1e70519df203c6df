"""What `python -m pvml.circuits.two_routes` prints: the worked example, read off a model's weights.

The model is built from the example's tables, and the last lines compare with them; every number
between comes from the functions that serve trained models. Positions are printed from 1, as in the
post; percentages are true values, rounded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits import two_routes as tr
from pvml.circuits.held import TOLERANCE, Head
from pvml.circuits.paths.frozen import freeze
from pvml.circuits.paths.logit_paths import Expansion, expand
from pvml.circuits.paths.routes import Routes, decompose
from pvml.circuits.paths.score_paths import expand_score
from pvml.circuits.skips.reading import Competition
from pvml.circuits.skips.trigrams import find_skip_trigrams
from pvml.circuits.weights.copying import copying_scores
from pvml.circuits.weights.maps import Circuit, bigram, ov, qk
from pvml.errors import CheckFailed
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen

LABELS = [f"{i} {token}" for i, token in enumerate(tr.SEQUENCE, start=1)]
READER = 7
"""The post's position 8, the third `the`."""
HEAD: Head = (0, 0)
CAT, MAT, THE = (tr.VOCABULARY.index(token) for token in ("cat", "mat", "the"))
N_NULL = 10_000
"""Random heads beside the one that copies."""

WALK = """\
  {label[0]:<6}  W_E ----- {share[0]:>3} --.
  {label[1]:<6}  W_E ----- {share[1]:>3} --+
  {label[2]:<6}  W_E ----- {share[2]:>3} --+
  {label[3]:<6}  W_E ----- {share[3]:>3} --+-- W_V --- W_O --.
  {label[4]:<6}  W_E ----- {share[4]:>3} --+                 |
  {label[5]:<6}  W_E ----- {share[5]:>3} --+                 |  route 2: what the head read
  {label[6]:<6}  W_E ----- {share[6]:>3} --+                 |  {route_2}
  {label[7]:<6}  W_E --+-- {share[7]:>3} --'                 |
                |                           v
                '-------- the stream ------(+)-- W_U --> {total}
                  route 1: the token itself
                  {route_1}
  {label[8]:<6}  masked: it stands behind position 8"""

Table = Float[Tensor, "rows columns"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """What is read off the model: its circuits, and one pass over the sentence."""

    model: Transformer
    tokens: Int[Tensor, "1 posn"]
    bigram: Circuit
    qk: Circuit
    """Divided by sqrt(d_head), as attention does."""
    ov: Circuit
    logits: Float[Tensor, "posn d_vocab"]
    scores: Float[Tensor, "posn_q posn_k"]
    """Divided by sqrt(d_head), the future still in them."""
    masked: Float[Tensor, "posn_q posn_k"]
    pattern: Float[Tensor, "posn_q posn_k"]

    @classmethod
    def of(cls, model: Transformer) -> "Example":
        tokens = tr.token_ids()[None]
        logits, cache = model.run_with_cache(tokens, names_filter="blocks.0.attn.*")
        grids = {
            name: cache[f"blocks.0.attn.{name}"][0, 0]
            for name in ("attn_scores", "attn_scores_masked", "attn_pattern")
        }
        return cls(
            model=model,
            tokens=tokens,
            bigram=bigram(model),
            qk=qk(model, HEAD, scaled=True),
            ov=ov(model, HEAD),
            logits=logits[0],
            scores=grids["attn_scores"] / model.cfg.d_head**0.5,
            masked=grids["attn_scores_masked"],
            pattern=grids["attn_pattern"],
        )

    def paths(self, position: int) -> Expansion:
        return expand(self.model, self.tokens, position, quiet=True)

    def routes(self, position: int) -> Routes:
        return decompose(self.model, self.tokens, position)


@t.no_grad()
def main(model: Transformer | None = None) -> None:
    """Print the example, from weights to prediction.

    model: read this one instead of the one built from the tables.

    Raises: CheckFailed if the model's circuits are not the tables.
    """
    example = Example.of(model or tr.as_model())
    for part in (
        sentence,
        route_1,
        where,
        row_8,
        unmasked,
        pattern,
        what,
        sum_up,
        walk,
        formula,
        frozen,
        copying,
        skipping,
        checks,
    ):
        part(example)
        print()


def grid(rows: Sequence[str], columns: Sequence[str], cell: Callable[[int, int], str]) -> None:
    """Print a table: a label for each row, then `cell(i, j)` under each column."""
    print(" " * 6 + "".join(f"{column:>7}" for column in columns))
    for i, row in enumerate(rows):
        print(f"{row:<6}" + "".join(f"{cell(i, j):>7}" for j in range(len(columns))))


def values(table: Table) -> Callable[[int, int], str]:
    return lambda i, j: f"{table[i, j]:z.1f}"


def percent(share: float | Tensor) -> str:
    return f"{100 * float(share):.0f}%"


def answer(logits: Tensor) -> str:
    return tr.VOCABULARY[int(logits.argmax())]


def sentence(example: Example) -> None:
    cfg = example.model.cfg
    numbers = sum(x.numel() for x in example.model.parameters())
    print(
        f"A Transformer of {numbers} numbers: {cfg.n_layers} layer, {cfg.n_heads} head, "
        f"d_model {cfg.d_model}, d_head {cfg.d_head}.\n"
        f"It has no MLP, no LayerNorm, no positions, and every bias is 0: nothing is left out.\n"
        f"What follows is read off its weights, or off a pass over this sentence:"
    )
    print("  " + "   ".join(LABELS))
    print("logits at a position = route 1 (its own token) + route 2 (what the head reads)")


def route_1(example: Example) -> None:
    print("ROUTE 1: the bigram table. Row: the token here. Column: a candidate for the next.")
    grid(tr.VOCABULARY, tr.VOCABULARY, values(example.bigram.map.dense()))
    for i in range(3):
        row = example.paths(i)["token"].vector
        (best, second), said = row.topk(2).values, answer(row)
        verdict = "right" if said == tr.SEQUENCE[i + 1] else f"wrong, it is {tr.SEQUENCE[i + 1]}"
        print(
            f"  after {' '.join(tr.SEQUENCE[: i + 1])!r}: row {tr.SEQUENCE[i]} answers {said} "
            f"({best:.1f}; the next best has {second:.1f}): {verdict}"
        )
    print("There is no row for 'the cat sat': route 1 knows the last token, and nothing before it.")


def where(example: Example) -> None:
    print("ROUTE 2, where to look: scores. Row: the reader. Column: what it may read. x: masked.")
    masked = example.masked
    grid(LABELS, LABELS, lambda i, j: "x" if masked[i, j].isneginf() else f"{masked[i, j]:z.1f}")
    pair = expand_score(example.model, example.tokens, HEAD, READER, 1, quiet=True)
    raw = pair.value("token", "token")
    print(
        f"A score depends on the two tokens only: position 8 reading 2 is the QK circuit's cell\n"
        f"(the, cat), {raw:.3f}, over sqrt(d_head): {raw * pair.scale:.1f}. This sentence shows 30 "
        f"of the 36 pairs;"
    )
    ours = sorted(tr.OURS, key=lambda p: tuple(map(tr.VOCABULARY.index, p)))
    print("the other six are ours: " + ", ".join(f"{to} <- {source}" for to, source in ours))


def row_8(example: Example) -> None:
    print("Position 8 through the softmax:")
    scores, shares = example.masked[READER], example.pattern[READER]
    powers = scores.exp()
    print(f"{'':6}{'score':>7}{'exp':>8}{'share':>16}")
    for j, label in enumerate(LABELS):
        score = "x" if scores[j].isneginf() else f"{scores[j]:.1f}"
        division = f"{powers[j]:.2f} / {powers.sum():.2f}"
        print(f"{label:<6}{score:>7}{powers[j]:>8.2f}{division:>16} = {percent(shares[j])}")
    print(f"{'sum':<6}{'':7}{powers.sum():>8.2f}{'':16}   {percent(shares.sum())}")
    gap, factor = scores[1] - scores[5], powers[1] / powers[5]
    print(f"A lead of {gap:.1f} in score (cat over mat) is a factor of {factor:.2f} in attention.")


def unmasked(example: Example) -> None:
    scores = example.scores[READER]
    shares = scores.softmax(-1)
    print(
        f"Were nothing masked, position 8 would score position 9, its own answer, "
        f"{scores[8]:.1f}:\n"
        f"positions 2 and 9 would tie at {100 * shares[1]:.1f}% and {100 * shares[8]:.1f}%."
    )


def pattern(example: Example) -> None:
    print("The whole pattern A: every row of scores through its softmax.")
    shares, masked = example.pattern, example.masked.isneginf()
    grid(LABELS, LABELS, lambda i, j: "x" if masked[i, j] else percent(shares[i, j]))
    print(
        f"A[8,2] = {percent(shares[7, 1])}: position 8 reads position 2. A[2,8] is masked: position"
    )
    print("2 cannot see the future.")
    print(
        f"A row shares out {' or '.join(sorted(set(map(percent, shares.sum(1)))))}. A column need"
    )
    print("not: a position may be read by many, or hardly at all. Columns add up to")
    print("  " + "  ".join(map(percent, shares.sum(0))))
    most = shares[:, 1].topk(3).indices.tolist()
    readers = ", ".join(f"{LABELS[i]} {percent(shares[i, 1])}" for i in most)
    print(f"Down column 2, who reads cat: {readers}, ...")
    print(f"Position 5 cannot see mat yet; position 8 can, and gives it {percent(shares[7, 5])}.")
    before, first = shares.diagonal(-1).mean(), shares[1:, 0].mean()
    print(
        f"Neither a previous-token head (mean share one back {percent(before)}) nor one that is\n"
        f"parked on position 1 (mean share there {percent(first)})."
    )


def what(example: Example) -> None:
    print("ROUTE 2, what looking there adds: the OV circuit's rows along the sentence.")
    grid(LABELS, tr.VOCABULARY, values(example.ov.map.rows(example.tokens[0])))
    table = example.ov.map.dense()
    own = sum(table[i].argmax() == i for i in range(len(table)))
    print(
        f"In {own} of {len(table)} rows the token's own column is the largest: look at a token, "
        f"speak for it."
    )


def sum_up(example: Example) -> None:
    print("Position 8, both routes:")
    routes, table = example.routes(READER), example.ov.map.rows(example.tokens[0])
    for j, candidate in ((1, CAT), (5, MAT)):
        sources = routes.by_source(*HEAD, candidate)
        others = sources.sum() - sources[j]
        print(
            f"  reading {LABELS[j]!r}: {example.pattern[READER, j]:.2f} x {table[j, candidate]:.1f}"
            f" = {sources[j]:+.2f} to {tr.VOCABULARY[candidate]}; all other positions together "
            f"{others:+.2f}"
        )
    paths = example.paths(READER)
    direct, head = (paths[name].vector for name in ("token", "token > 0.0"))
    print(f"{'':8}{'route 1':>9}{'route 2':>9}{'total':>9}")
    for token, one, two, total in zip(tr.VOCABULARY, direct, head, paths.logits, strict=True):
        print(f"{token:<8}{one:>z9.2f}{two:>+z9.2f}{total:>z9.2f}")
    print(f"{paths.check()};")
    print("those that are neither route are biases, and 0.")
    print(f"Route 1 alone answers {answer(direct)}, both together {answer(paths.logits)}.")


def walk(example: Example) -> None:
    print("The same as a walk. Each line is a position, with the share that position 8 gives it.")
    paths = example.paths(READER)

    def said(logits: Tensor, sign: str = "") -> str:
        return ", ".join(f"{tr.VOCABULARY[i]} {logits[i]:{sign}.2f}" for i in (CAT, MAT))

    drawn = WALK.format(
        label=LABELS,
        share=[percent(share) for share in example.pattern[READER]],
        route_1=said(paths["token"].vector),
        route_2=said(paths["token > 0.0"].vector, "+"),
        total=said(paths.logits),
    )
    print(drawn)


def tensor_product(
    across_positions: Float[Tensor, "posn posn"],
    across_vocabulary: Float[Tensor, "d_vocab d_vocab"],
    tokens: Float[Tensor, "posn d_vocab"],
) -> Float[Tensor, "posn d_vocab"]:
    """`(A x B) t`, x the tensor product: A t B^T, for tokens t as one-hot rows.

    B is the paper's: [n_vocab out, n_vocab in], the transpose of a circuit here.
    """
    return across_positions @ tokens @ across_vocabulary.T


def formula(example: Example) -> None:
    A, here = example.pattern, t.eye(len(LABELS), dtype=t.float64)
    one_hot = t.eye(len(tr.VOCABULARY), dtype=t.float64)[example.tokens[0]]
    direct, head = (circuit.map.T.dense() for circuit in (example.bigram, example.ov))
    parts = tensor_product(here, direct, one_hot) + tensor_product(A, head, one_hot)
    T = t.kron(here, direct) + t.kron(A, head)
    whole = (T @ one_hot.flatten()).view_as(one_hot)
    print("THE FORMULA: T = Id x W_U W_E + A x (W_U W_OV W_E), x the tensor product.")
    print("Left of the x: which position reaches which. Right: what that does to the logits.")
    for words, logits in (
        (f"(A x B) t = A t B^T, for t the sentence as {len(one_hot)} one-hot rows", parts),
        (f"T written out, {T.shape[0]} x {T.shape[1]}, times those rows end to end", whole),
    ):
        print(f"  {words}: off the model's logits by {off(logits, example.logits):.1e}")


def frozen(example: Example) -> None:
    print("WHAT IS LINEAR: all but A. Put cat's embedding in the place of mat's at position 6.")
    embedded = example.model.embed.W_E[example.tokens[0]]
    other = embedded.clone()
    other[5] = example.model.embed.W_E[CAT]
    first, second, nothing = embedded.clone(), embedded.clone(), t.zeros_like(embedded)
    first[4:], second[:4] = 0.0, 0.0
    streams = (other, embedded, first, second, nothing)
    anew = [passed(example, x) for x in streams]
    with freeze(example.model, example.tokens):
        held = [passed(example, x) for x in streams]
    before, share = example.logits[READER, CAT], example.pattern[READER, 5]
    cats, mats = (example.ov.map.entries([i], [CAT])[0] for i in (CAT, MAT))
    print(f"cat's logit at position 8, {before:.2f} before, is then")
    print(
        f"  with A held   {held[0][READER, CAT]:.2f}, as OV says: {before:.2f} + {share:.2f} x "
        f"({cats:.1f} - {mats:.1f}) = {before + share * (cats - mats):.2f}"
    )
    print(f"  with A anew   {anew[0][READER, CAT]:.2f}, for a cat draws more than the mat did")
    print("Positions 1 to 4 alone, and 5 to 9 alone: do their logits add up to the sentence's?")
    for words, (_, both, one, two, none) in (("held", held), ("anew", anew)):
        print(f"  with A {words}   off by {off(both + none, one + two):.1e}")


def passed(
    example: Example, stream: Float[Tensor, "posn d_model"]
) -> Float[Tensor, "posn d_vocab"]:
    """The logits if this is what the tokens are embedded as."""
    with listen(example.model, "embed.out", lambda name, _: stream[None], edits=True):
        logits: Tensor = example.model(example.tokens)
    return logits[0]


def copying(example: Example) -> None:
    eigenvalues = example.ov.map.eigenvalues().tolist()
    shown = [f"{x.real:.2f}{f'{x.imag:+.2f}i' * bool(x.imag)}" for x in eigenvalues]
    (score,) = copying_scores(example.model, n_null=N_NULL)
    print("COPYING: the OV circuit's eigenvalues, " + ", ".join(shown) + ".")
    positive = sum(x.real > 0 for x in eigenvalues)
    print(f"{positive} of {len(eigenvalues)} are positive: what is read comes out likelier.")
    print("The copying score is their sum over that of their absolute values:")
    print(f"  head {score}")
    verdict = "is beyond" if score.beyond else "is not beyond"
    print(f"One head was tried, beside {N_NULL:,} random ones: its copying {verdict} chance.")


def skipping(example: Example) -> None:
    print("SKIP-TRIGRAMS, mined from QK and OV: [what is read] ... [who reads] -> [likelier next].")
    print("Effect: the share of attention x the logit over the mean candidate's (nats).")
    others = tuple(i for j, i in enumerate(example.tokens[0, :READER].tolist()) if j != 1)
    here = find_skip_trigrams(
        example.model,
        top=1,
        sources=[CAT],
        destinations=[THE],
        competition=Competition(n_others=0, always=others),
    )
    anywhere = find_skip_trigrams(
        example.model, top=3, competition=Competition(n_others=len(others))
    )
    for words, mined in (
        ("in this sentence, position 8 reading position 2", here),
        (f"anywhere, among {len(others)} other tokens that could be any", anywhere),
    ):
        print(f"  {words}:")
        for one in mined.found:
            ids = (one.source, one.destination, one.output)
            source, destination, output = (tr.VOCABULARY[i] for i in ids)
            print(
                f"    [{source}] ... [{destination}] -> [{output}]: {one.attention:.2f} x "
                f"{one.logit:.2f} = {one.effect:+.2f}"
            )


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def checks(example: Example) -> None:
    print("CHECK: the circuits read off the weights against the tables that they were built from.")
    for circuit, table in ((example.bigram, tr.BIGRAM), (example.qk, tr.QK), (example.ov, tr.OV)):
        difference = off(circuit.map.dense(), table)
        if not difference <= TOLERANCE[t.float64]:
            raise CheckFailed(
                f"{circuit.name} is not the table it was built from: {difference:.1e}"
            )
        print(f"  {circuit.name:<8}  largest difference {difference:.1e}")
