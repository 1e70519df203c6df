"""Does one layer of attention copy, and say what only skip-trigrams explain?

The bigrams, and a term for each head. A head that copies has mostly positive eigenvalues; a source,
a destination and an output that a head joins are a skip-trigram. Both are read off the weights;
random heads, and the held-out text, say what is in them.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pvml.circuits.skips.evidence import find_evidence
from pvml.circuits.skips.reading import Competition
from pvml.circuits.skips.trigrams import find_skip_trigrams
from pvml.circuits.weights.copying import copying_scores

if TYPE_CHECKING:
    from reproduce import Trained

FLAGS = """
    --n-layers 1 --n-heads 8 --positions shortformer --position-waves 1 --optimizer muon --lr 0.005
"""
N_TRIGRAMS = 10


def measure(trained: "Trained") -> dict[str, Any]:
    """Every head's copying score, and the strongest skip-trigrams with their counts, none chosen.

    Of one source and head only the strongest is told.
    """
    copying = copying_scores(trained.model)
    return {
        "heads": len(copying),
        "copying_heads": sum(score.beyond for score in copying),
        "copying": [{**asdict(score), "beyond": score.beyond} for score in copying],
        "skip_trigrams": skip_trigrams(trained),
    }


def told(found: Mapping[str, Any]) -> list[str]:
    """What was found, as lines for people."""
    lines = [f"{found['copying_heads']} of {found['heads']} heads copy, beyond random heads:"]
    for one in found["copying"]:
        score = "undefined" if one["score"] is None else f"{one['score']:+.2f}"
        lines.append(
            f"  {one['layer']}.{one['head']}  {score}  (random heads {one['null_mean']:+.2f} ± "
            f"{one['null_spread']:.2f}; p {one['p']:.1g}{'' if one['beyond'] else ', by chance'})"
        )
    lines.append("the strongest skip-trigrams, and how often the held-out text goes so:")
    for one in found["skip_trigrams"]:
        with_source, in_all = one["with_source"], one["in_all"]
        lift, chance = "not tested", ""
        if one["lift"] is not None:
            lift = f"lift {one['lift']:.1f}"
            chance = "" if one["beyond"] else ", not beyond chance"
        lines.append(
            f"  {one['head']}  {one['name']}  {one['effect']:+.2f} nats x std; "
            f"{with_source[0]:,} of {with_source[1]:,}, without asking for the source "
            f"{in_all[0]:,} of {in_all[1]:,}: {lift}{chance}"
        )
    return lines


def in_short(found: Mapping[str, Any]) -> str:
    """How many heads copy, and how many of the strongest skip-trigrams the text bears out."""
    trigrams = found["skip_trigrams"]
    beyond = sum(one["beyond"] for one in trigrams)
    untested = sum(one["lift"] is None for one in trigrams)
    return (
        f"{found['copying_heads']} of {found['heads']} heads copy; of {len(trigrams)} "
        f"skip-trigrams {beyond} are beyond chance in held-out text, {untested} not tested"
    )


def skip_trigrams(trained: "Trained") -> list[dict[str, Any]]:
    """The model's strongest, with what the held-out text says of each."""
    rows = trained.held_out_rows()
    mined = find_skip_trigrams(
        trained.model,
        top=N_TRIGRAMS,
        per_source=1,
        competition=Competition.of_text(rows, trained.model.cfg.d_vocab),
        tokenizer=trained.tokenizer,
    )
    strongest = sorted(mined.found, key=lambda trigram: -trigram.effect)[:N_TRIGRAMS]
    eos = trained.tokenizer.eos_token_id
    return [
        {
            "head": "{}.{}".format(*evidence.trigram.head),
            "name": evidence.trigram.name,
            "effect": evidence.trigram.effect,
            "with_source": [evidence.n_source_output, evidence.n_source_destination],
            "in_all": [evidence.n_output, evidence.n_destination],
            "lift": evidence.lift,
            "beyond": evidence.beyond,
        }
        for evidence in find_evidence(strongest, rows, document_end=eos)
    ]


if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
