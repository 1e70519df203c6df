"""What the seven module commands print: figures, tensors, columns; and that the lines are live."""

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch as t
import torch.nn.functional as F

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.demos import (
    attention,
    block,
    embedding,
    mlp,
    normalization,
    subject,
    transformer,
    unembedding,
)
from pvml.demos.subject import TEXT, Subject, gpt2_or_random
from pvml.errors import HubUnavailable, PvmlError
from pvml.loading import Loaded
from pvml.modules.transformer import Transformer
from pvml.parity.check import move_off_defaults

DEMOS = {
    "embedding": embedding,
    "normalization": normalization,
    "attention": attention,
    "mlp": mlp,
    "block": block,
    "unembedding": unembedding,
    "transformer": transformer,
}
LN = [
    ("residual", (1, 7, 768)),
    ("residual_mean", (1, 7, 1)),
    ("residual_std", (1, 7, 1)),
    ("residual", (1, 7, 768)),
    ("w, b", (768,)),
    ("out", (1, 7, 768)),
]
ATTENTION = [
    ("normalized_resid_pre", (1, 7, 768)),
    *(pair for x in "QKV" for pair in ((f"W_{x}", (12, 768, 64)), (f"b_{x}", (12, 64)), (x, 0))),
    ("attn_scores", (1, 12, 7, 7)),
    ("mask", (7, 7)),
    ("attn_scores_masked", (1, 12, 7, 7)),
    ("attn_pattern", (1, 12, 7, 7)),
    ("z", (1, 7, 12, 64)),
    ("W_O", (12, 64, 768)),
    ("b_O", (768,)),
    ("attn_out", (1, 7, 768)),
]
ATTENTION = [(n.lower(), (1, 7, 12, 64)) if shape == 0 else (n, shape) for n, shape in ATTENTION]
MLP = [
    ("normalized_resid_mid", (1, 7, 768)),
    ("W_in", (768, 3072)),
    ("b_in", (3072,)),
    ("pre", (1, 7, 3072)),
    ("post", (1, 7, 3072)),
    ("W_out", (3072, 768)),
    ("b_out", (768,)),
    ("mlp_out", (1, 7, 768)),
]


def without_weights(rows: list[Any]) -> list[Any]:
    return [(name, shape) for name, shape in rows if not re.match(r"[Wb]_|w, b", name)]


TRACES = {
    "embedding": [
        ("embed", [("in", (1, 7)), ("W_E", (50257, 768)), ("out", (1, 7, 768))]),
        (
            "pos_embed",
            [
                ("in", (1, 7)),
                ("W_pos", (1024, 768)),
                ("sliced", (7, 768)),
                ("out", (1, 7, 768)),
            ],
        ),
    ],
    "normalization": [("ln", LN)],
    "attention": [("attn", ATTENTION)],
    "mlp": [("mlp", MLP)],
    "block": [
        ("block", [("resid_pre", (1, 7, 768))]),
        ("ln1", without_weights(LN)),
        ("attn", without_weights(ATTENTION)),
        ("block", [("resid_mid", (1, 7, 768))]),
        ("ln2", without_weights(LN)),
        ("mlp", without_weights(MLP)),
        ("block", [("resid_post", (1, 7, 768))]),
    ],
    "unembedding": [
        (
            "unembed",
            [
                ("normalized_resid_final", (1, 7, 768)),
                ("W_U", (768, 50257)),
                ("b_U", (50257,)),
                ("logits", (1, 7, 50257)),
            ],
        )
    ],
}
PARAMETERS = {
    "embedding": """
 W_E: (50257, 768)
total: 38,597,376 parameters
 W_pos: (1024, 768)
 total: 786,432 parameters
""",
    "normalization": """
 w: (768,)
 b: (768,)
total: 1,536 parameters
""",
    "attention": """
 W_Q: (12, 768, 64)
 W_K: (12, 768, 64)
 W_V: (12, 768, 64)
 W_O: (12, 64, 768)
 b_Q: (12, 64)
 b_K: (12, 64)
 b_V: (12, 64)
 b_O: (768,)
total: 2,362,368 parameters
""",
    "mlp": """
  W_in: (768, 3072)
 W_out: (3072, 768)
  b_in: (3072,)
 b_out: (768,)
 total: 4,722,432 parameters
""",
    "block": """
block parameters: 7,087,872
""",
    "unembedding": """
 W_U: (768, 50257)  requires_grad=True
 b_U: (50257,)  requires_grad=False
total: 38,647,633 parameters
""",
}


@pytest.fixture(scope="module")
def twin() -> Subject:
    """The random model of GPT-2's shape, one layer of it, as the commands draw it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "load", unreachable)
        return gpt2_or_random(n_layers=1)


@pytest.fixture
def small() -> Subject:
    cfg = Config(d_model=23, n_heads=3, d_head=7, d_mlp=37, n_layers=2, n_ctx=17)
    model = move_off_defaults(Transformer(cfg, seed=0), 0).double()
    tokenizer = Tokenizer.gpt2()
    return Subject(model, tokenizer, tokenizer.to_tokens(TEXT), "A small random model.")


def unreachable(*given: object, **options: object) -> Loaded:
    raise HubUnavailable("The hub is far away. Give a local path.")


def printed(capsys: pytest.CaptureFixture[str], main: Callable[..., None], *given: Any) -> str:
    capsys.readouterr()
    main(*given)
    return capsys.readouterr().out


def differences(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"^max abs diff vs .*: (\S+)$", text, re.MULTILINE)]


@pytest.mark.parametrize("name", TRACES)
def test_the_figures_of_gpt2_small(
    twin: Subject, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """At GPT-2's shape each command prints its parameters, total, trace and parity as specified."""
    text = printed(capsys, DEMOS[name].main, twin)
    lines = text.splitlines()

    expected = PARAMETERS[name].strip("\n").splitlines()
    assert [line for line in lines if line in expected] == expected

    traced = [re.match(r"\[(\w+)\] +(.+?): (\([^#]*\))", line) for line in lines]
    found = [(m[1], m[2], ast.literal_eval(m[3].strip())) for m in traced if m]
    assert found == [(tag, label, shape) for tag, rows in TRACES[name] for label, shape in rows]

    columns = {line.index(": (") for line in lines if line.startswith("[")}
    assert columns == ({34} if name == "unembedding" else {32})

    exact = name == "embedding"
    assert all(d == 0 if exact else 0 < d < 3e-5 for d in differences(text))
    assert len(differences(text)) == (2 if exact else 1)


def test_the_sentence_is_shown_as_ids_and_tokens(
    small: Subject, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedding command shows the text, its seven ids with BOS first, and its token strings."""
    lines = printed(capsys, embedding.main, small).splitlines()
    assert lines[2:6] == [
        "text   'The cat sat on the mat'",
        "ids    50256 464 3797 3332 319 262 2603",
        "tokens ['<|endoftext|>', 'The', ' cat', ' sat', ' on', ' the', ' mat']",
        "shape  (1, 7)   # (batch, posn)",
    ]


def test_head_0_as_a_labelled_table(small: Subject, capsys: pytest.CaptureFixture[str]) -> None:
    """The pattern has a labelled row and column for each position; rows sum to 1."""
    lines = printed(capsys, attention.main, small).splitlines()
    start = lines.index("attention pattern of head 0") + 1
    assert lines[start] == "   query / key   <BOS>     The     cat     sat      on     the     mat"
    _, cache = small.model.run_with_cache(small.tokens)
    expected = cache["blocks.0.attn.attn_pattern"][0, 0].tolist()
    for q, line in enumerate(lines[start + 1 :]):
        label, *cells = line.split()
        assert line.startswith(f"{label:>14}") and label == small.labels[q]
        assert cells == [f"{share:.2f}" for share in expected[q]]
        assert sum(expected[q]) == pytest.approx(1) and not any(expected[q][q + 1 :])


@pytest.mark.parametrize("name", ["unembedding", "transformer"])
def test_the_next_token_table(
    small: Subject, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Each position's label points to the model's likeliest next token, as a Python string."""
    lines = printed(capsys, DEMOS[name].main, small).splitlines()
    start = lines.index("next-token predictions") + 1
    best = small.model(small.tokens)[0].argmax(-1).tolist()
    for line, label, token in zip(lines[start:], small.labels, best, strict=False):
        assert line == f"{label:>10}  ->  {small.tokenizer.decode([token])!r}"


def test_the_whole_model_against_the_reference(
    small: Subject, capsys: pytest.CaptureFixture[str]
) -> None:
    """The transformer command counts, matches the keys, and finds equal logits and arg-maxes."""
    text = printed(capsys, transformer.main, small)
    total = sum(x.numel() for x in small.model.parameters())
    assert f"parameters      : {total:,}\n" in text
    assert re.search(r"^missing keys    : \[\]", text, re.MULTILINE)
    assert "unexpected keys : 0 ([])\n" in text
    assert "logits (1, 7, 50257)\n" in text and "same argmax everywhere: True\n" in text
    assert 0 < differences(text)[0] < 1e-12


def test_a_key_that_does_not_fit_is_listed(
    small: Subject, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parameter that the reference would never read appears among the unexpected keys."""
    small.model.embed.extra = t.nn.Parameter(t.zeros(3))
    assert "unexpected keys : 1 (['embed.extra'])" in printed(capsys, transformer.main, small)


@pytest.mark.parametrize(
    ("cfg", "figures"),
    [
        (
            Config(),
            {
                "embed": 38_597_376,
                "pos_embed": 786_432,
                "blocks": 85_054_464,
                "ln_final": 1_536,
                "unembed": 38_647_633,
                "total": 163_087_441,
                "tied": 124_439_808,
            },
        ),
        (Config(d_model=128, n_layers=6, n_heads=4, n_ctx=128), {"total": 14_122_321}),
        (Config(d_model=128, n_layers=6, n_heads=4, n_ctx=512), {"total": 14_171_473}),
        (Config(tie_embeddings=True), {"total": 124_439_808}),
    ],
    ids=["GPT-2 small", "n_ctx 128", "n_ctx 512", "tied"],
)
def test_the_breakdown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cfg: Config,
    figures: dict[str, int],
) -> None:
    """Parameters by part are the published figures; tied tables are counted once."""
    # memory that is never written is never used: 163 million numbers cost nothing to count
    monkeypatch.setattr(t.Tensor, "normal_", lambda self, **options: self)
    model = Transformer(cfg)
    text = printed(capsys, transformer.print_breakdown, model)
    found = {m[1]: int(m[2].replace(",", "")) for m in re.finditer(r"(\w+) +([\d,]+)", text)}
    assert {name: found.get(name) for name in figures} == figures
    assert "  embed        38,597,376\n" in text or cfg.d_model != 768


@pytest.mark.parametrize("name", ["mlp", "block", "transformer"])
def test_the_parity_line_is_live(
    monkeypatch: pytest.MonkeyPatch, small: Subject, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """With the wrong gelu, the line of every module that contains one says so."""
    right = differences(printed(capsys, DEMOS[name].main, small))[0]
    exact = F.gelu
    monkeypatch.setattr(F, "gelu", lambda x, approximate: exact(x))
    assert right < 1e-12 < 1e-5 < differences(printed(capsys, DEMOS[name].main, small))[0]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", DEMOS)
def test_the_module_run_as_a_program_prints_its_demonstration(
    monkeypatch: pytest.MonkeyPatch, small: Subject, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """`python -m pvml.modules.NAME` is the demonstration of that name, note first."""
    monkeypatch.setattr(DEMOS[name], "gpt2_or_random", lambda **layers: small)
    expected = printed(capsys, DEMOS[name].main, small)
    runpy.run_module(f"pvml.modules.{name}", run_name="__main__")
    assert capsys.readouterr().out == expected
    assert expected.startswith("A small random model.\n")


def test_the_command_line_itself() -> None:
    """The command works in a process of its own, warnings being errors, and says what it shows."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pvml.modules.embedding"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "random model of GPT-2's shape" in run.stdout
    assert "50256 464 3797 3332 319 262 2603" in run.stdout


def test_gpt2_is_preferred(monkeypatch: pytest.MonkeyPatch, small: Subject) -> None:
    """Where GPT-2's weights can be had, they are the subject, and the note says so."""
    loaded = Loaded(small.model, small.tokenizer, "gpt2", "the hub")
    monkeypatch.setattr(subject, "load", lambda name, **options: loaded if name == "gpt2" else None)
    found = gpt2_or_random(n_layers=1)
    assert found.model is small.model and found.note == "GPT-2's weights: the hub."
    assert found.tokens.tolist() == [[50256, 464, 3797, 3332, 319, 262, 2603]]


def test_the_twin_is_said_to_be_one(twin: Subject) -> None:
    """Without the hub the note gives the reason, the shape and the seed; no default is left."""
    assert twin.note == (
        "The hub is far away.\n"
        "So this is a random model of GPT-2's shape (1 of its 12 layers): seed 0, every parameter "
        "moved off its default."
    )
    assert twin.model.cfg == Config(n_layers=1) and not twin.model.training
    assert twin.model.unembed.b_U.abs().min() > 0


def test_what_stands_in_for_gpt2_and_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is a reason for the twin; damaged weights are an error that surfaces."""
    sizes = {"d_model": 23, "n_heads": 1, "n_ctx": 17}
    monkeypatch.setattr(subject, "Config", lambda **layers: Config(**sizes, **layers))

    def needs_the_extra(*given: object, **options: object) -> Loaded:
        raise PvmlError("gpt2 needs: pip install 'pvml[hub]'") from ImportError("no such package")

    monkeypatch.setattr(subject, "load", needs_the_extra)
    assert "pvml[hub]" in gpt2_or_random(n_layers=0).note

    def damaged(*given: object, **options: object) -> Loaded:
        raise PvmlError("model.safetensors is cut short")

    monkeypatch.setattr(subject, "load", damaged)
    with pytest.raises(PvmlError, match="cut short"):
        gpt2_or_random(n_layers=0)
