"""Do two layers make an induction circuit, and does the loss tell when?

An induction head reads, through its keys, what a previous-token head of the layer below has noted.
It is looked for in every checkpoint that was kept, so that the step at which it forms can be seen
beside the loss.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pvml.circuits.heads.over_training import induction_score, score_over_training
from pvml.circuits.induction.study import study_induction
from pvml.circuits.paths.orders import loss_by_order
from pvml.circuits.weights.composition import composition_scores

if TYPE_CHECKING:
    from reproduce import Trained

FLAGS = """
    --n-layers 2 --n-heads 4 --positions shortformer --position-waves 1 --optimizer muon --lr 0.005
    --keep-every 100
"""
SEED = 0


def measure(trained: "Trained") -> dict[str, Any]:
    """The circuit, what joins its heads, what it is worth, and when it formed."""
    rows = trained.held_out_rows()
    study = study_induction(trained.model, rows, seed=SEED)
    composed = [score for score in composition_scores(trained.model, seed=SEED) if score.beyond]
    orders = loss_by_order(trained.model, rows[:32])
    found = score_over_training(trained.run, induction_score(rows, seed=SEED))
    return {
        "study": str(study).splitlines(),
        "induction_heads": [f"{s.layer}.{s.head}" for s in study.induction],
        "previous_token_heads": [f"{s.layer}.{s.head}" for s in study.previous],
        "advantage": study.repeats.advantage,
        "lost": {worth.what: worth.value for worth in study.lost},
        "kept": None if study.kept is None else study.kept.value,
        "composed": {
            kind: [str(score) for score in composed if score.kind == kind] for kind in "QKV"
        },
        "loss_by_order": orders.losses,
        "gain_by_order": orders.gains,
        "over_training": {"steps": found.steps, "scores": dict(found.scores)},
        "forms_at": found.halfway("advantage"),
        "steepest": found.rise("advantage", "advantage, reordered"),
    }


def told(found: Mapping[str, Any]) -> list[str]:
    """What was found, as lines for people."""
    counts = ", ".join(f"{kind} {len(pairs)}" for kind, pairs in found["composed"].items())
    gains = ", ".join(f"{gain:.3f}" for gain in found["gain_by_order"])
    since = "No induction head formed, so there is no step to tell."
    if found["induction_heads"]:
        since = f"The advantage is past its middle at step {found['forms_at']:,}"
        if found["steepest"]:
            since += "; it rises most between steps {:,} and {:,}".format(*found["steepest"])
        since += "."
    return [
        *found["study"],
        f"Pairs of heads that compose beyond random rotations: {counts}.",
        f"Nats gained by paths through 0, 1, 2 heads: {gains}.",
        since,
    ]


def in_short(found: Mapping[str, Any]) -> str:
    """Which heads make a circuit, and what repetition is worth; if there is one, since when."""
    heads, since = "no induction head", ""
    if found["induction_heads"]:
        heads = f"induction heads {', '.join(found['induction_heads'])}"
        since = f", past its middle at step {found['forms_at']:,}"
    return (
        f"{heads}; pairs that compose for keys: {len(found['composed']['K'])}; "
        f"advantage {found['advantage']:.2f} nats{since}"
    )


if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
