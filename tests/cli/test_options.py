"""Every flag of every command, so that none appears or vanishes unseen."""

import re

import pytest

from pvml.cli.circuits import COMMANDS as CIRCUITS
from pvml.cli.main import COMMANDS, main

MODEL = """
    --attn-only --d-head --d-mlp --d-model --init-range --layer-norm-eps --n-ctx --n-heads
    --n-layers --no-attn-only --no-tie-embeddings --normalization --positions --tie-embeddings
"""
JSON = "--device --json --no-json"
ROWS = f"{JSON} --data --limit --n-ctx --seed"
TABLE = f"{JSON} --biases --lowest --no-biases --no-lowest --norms --plot --top"
OPTIONS = {
    "demo": """
        --batch-size --d-model --d-vocab --data --device --init-range --limit --lr --n-ctx --n-heads
        --n-held-out --name --positions --prompt --run-dir --seed --steps --train-seconds
    """,
    "train": f"""{MODEL}
        --accumulate --batch-size --checkpoint-every --data --decay-share --device --epochs
        --final-lr-share --grad-clip --held-out --keep-every --limit --log --lr
        --max-steps-per-epoch --n-held-out --name --no-overwrite --no-resume --optimizer --overwrite
        --packing --parallel --position-waves --precision --preset --resume --run-dir
        --sample-prompt --schedule --seed --seeds --split-seed --tokenizer --warmup-steps
        --weight-decay
    """,
    "sample": """
        [PROMPT] MODEL --banned-tokens --beams --device --early-stopping --explain
        --frequency-penalty --length-penalty --logit-bias --max-new-tokens --min-p --n-best
        --no-explain --no-prepend-bos --no-repeat-ngram-size --prepend-bos --repetition-penalty
        --seed --stop --temperature --top-k --top-p
    """,
    "compare": """
        MODEL... --banned-tokens --device --frequency-penalty --json --logit-bias --max-new-tokens
        --min-p --n-seeds --n-texts --no-json --no-prepend-bos --no-repeat-ngram-size --page
        --prepend-bos --prompt --repetition-penalty --seed --stop --temperature --text-tokens
        --top-k --top-p
    """,
    "trace": "MODEL TEXT --device --no-weights --only --weights",
    "verify": """
        [MODEL] --against --attn-only --backward --batch-size --brief --d-head --d-mlp --d-model
        --d-vocab --device --dtype --json --kind --module --n-ctx --n-heads --n-layers --n-tokens
        --no-attn-only --no-backward --no-brief --no-json --no-tie-embeddings --normalization
        --positions --seed --seeds --shape --tie-embeddings
    """,
    "import": "SOURCE NAME --dtype --json --no-json --run-dir --tokenizer",
    "models": "--json --no-json",
    "data": "--batch-size --data --limit --n-ctx --n-held-out --packing --seed --tokenizer",
    "runs": "[RUN_DIR] --json --no-json",
    "evaluate": "MODEL --batch-size --data --device --json --limit --n-ctx --no-json",
    "plot": "[RUN_DIR...] --format --out",
    "patch": f"""
        MODEL {JSON} --answer --by-position --clean --corrupted --direction --minus --no-by-position
        --over --plot --position --save --top
    """,
    "attribute": f"MODEL TEXT {JSON} --answer --minus --plot --position --top",
    "lens": f"MODEL TEXT {JSON} --answer --incl-mid --no-incl-mid --position --scale",
    "circuits": f"MODEL {ROWS}",
    "circuits heads": f"{ROWS} --kinds --n-random --plot --texts --top",
    "circuits copying": f"{JSON} --plot --seed",
    "circuits compose": f"{JSON} --plot --seed --top",
    "circuits paths": f"TEXT {JSON} --least --minus --most-paths --plot --position --token --top",
    "circuits scores": f"TEXT {JSON} --head --key --most-paths --plot --query --top",
    "circuits attention": f"TEXT {JSON} --head --layer --plot",
    "circuits ov": f"HEAD[>HEAD...] {TABLE} --read --write",
    "circuits qk": f"""
        HEAD {TABLE} --key --keys-through --no-scaled --queries-through --query --scaled
    """,
    "circuits bigram": f"{TABLE} --read --write",
    "circuits skips": f"{ROWS} --destination --head --output --per-source --source --top",
    "circuits induction": f"{ROWS} --n-random --search",
    "circuits report": f"{JSON} --circuit --no-circuit --out --seed",
    "circuits check": f"FILE {JSON}",
    "circuits survey": f"{JSON} --only --out --top",
    "circuits training": f"{ROWS} --every --plot",
    "export": "MODEL --no-pad-vocab --no-private --pad-vocab --private --push --to",
    "profile": """
        [RUN_DIR] --batch-size --d-model --d-vocab --device --doubling --grad-clip --json --n-ctx
        --n-heads --n-layers --no-doubling --no-json --optimizer --precision --steps
    """,
}


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_are_these(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """A command's help lists exactly the options and arguments written here."""
    assert main([*command.split(), "--help"]) == 0

    listed = set()
    for line in capsys.readouterr().out.splitlines():
        inside = line.strip("│| ")
        entry = re.match(r"(\[?[A-Z_]{4,}(\.\.\.|\[>HEAD\.\.\.\])?\]?)(  |$)|-", inside)
        if entry and entry[1]:
            listed.add(entry[1])
        elif entry:
            flags, *_ = re.split(r"  ", inside)
            listed |= set(re.findall(r"--[a-z][a-z-]*", flags))
    assert sorted(listed - {"--help"}) == sorted(OPTIONS[command].split())


def test_the_list_is_for_every_command() -> None:
    """No command is left out of the list, nor any of `pvml circuits`."""
    circuits = [f"circuits {name}" for name in CIRCUITS]
    assert [name for name in OPTIONS if name not in circuits] == list(COMMANDS)
    assert [name for name in OPTIONS if name in circuits] == circuits
