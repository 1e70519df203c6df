"""`pvml train --preset NAME`: recipes by name. LOG.md tells how they were found.

A preset stands for flags, as if they were given before all others: those given win.
A preset's warm-up is shortened where a run is short (`pvml.cli.training_run.fitted`).
"""

from collections.abc import Sequence

PRESETS = {
    "laptop": """
        --tokenizer bpe:4096 --d-model 192 --n-layers 3 --n-heads 3 --n-ctx 256 --packing document
        --position-waves 0.05 --optimizer muon --lr 0.005 --weight-decay 0.1 --schedule linear
        --warmup-steps 60 --batch-size 8 --precision bfloat16 --epochs 4 --max-steps-per-epoch 1100
    """,
}
"""Names, and the flags that each stands for."""


def expanded(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the flags of the preset among them put before all.

    An unknown preset stays as it is: the parser refuses it.
    """
    words = list(arguments)
    for place, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag == "--preset":
            name = value or "".join(words[place + 1 : place + 2])
            return [*PRESETS.get(name, "").split(), *words]
    return words
