"""The golden figures of GPT-2's own weights: a function for each, run on them and on a small twin.

The twin is a random GPT-2 in Hugging Face's files in the hub's cache, loaded by the same name. On
it each function is held against Hugging Face's or NumPy's own computation from the same files.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch as t

from pvml.data.tokenizer import Tokenizer
from pvml.demos import lines
from pvml.demos.beams import PROMPT as BEAM_PROMPT
from pvml.demos.sampler import N_NEW
from pvml.demos.sampler import PROMPT as GREEDY_PROMPT
from pvml.demos.subject import TEXT
from pvml.loading import load
from pvml.loading.hub import hub_folder
from pvml.modules.transformer import Transformer
from pvml.parity.check import array_of, parameters_of, unmatched
from pvml.parity.passes import module_by_module
from pvml.reference.huggingface import activations, published, tiny_gpt2
from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beams import beam_search
from pvml.sampling.sampler import Sampler
from pvml.training.losses import get_log_probs

Agree = Callable[[Any], None]
HubCache = Callable[[str, Path], AbstractContextManager[None]]
MODULES = {
    "embed": "embed.out",
    "pos_embed": "pos_embed.out",
    "ln1": "blocks.0.ln1.out",
    "attn": "blocks.0.attn.attn_out",
    "mlp": "blocks.0.mlp.mlp_out",
    "unembed": "unembed.logits",
}
"""What each kind of module gives: the first of its kind."""


class Both(NamedTuple):
    """A GPT-2 as PvML loads it from the hub, and as Hugging Face reads the same files."""

    model: Transformer
    tokenizer: Tokenizer
    theirs: Any


def both(dtype: t.dtype) -> Both:
    loaded = load("gpt2", device="cpu", dtype=dtype)
    return Both(loaded.model, loaded.tokenizer, published(hub_folder("gpt2"), dtype))


@pytest.fixture(scope="module")
def gpt2(hub: None) -> Both:
    """The real one."""
    return both(t.float32)


@pytest.fixture(scope="module")
def twin(hub_cache: HubCache, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The small one, in float64."""
    folder = tmp_path_factory.mktemp("gpt2")
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 2, "n_ctx": 40, "d_mlp": 7}
    tiny_gpt2(3, d_vocab=50257, **sizes).save_pretrained(folder)
    with hub_cache("openai-community/gpt2", folder):
        return both(t.float64)


@pytest.fixture
def sentence() -> t.Tensor:
    return Tokenizer.gpt2().to_tokens(TEXT)


def parameters(model: Transformer) -> dict[str, int]:
    return dict(model.parameter_counts())


@pytest.mark.network
def test_parameters(gpt2: Both, agree: Agree) -> None:
    """163,087,441 numbers, part by part."""
    agree(parameters(gpt2.model))


def test_parameters_offline(twin: Both) -> None:
    """The parts' numbers are those of Hugging Face's tensors, and b_U."""
    theirs = {name: x.numel() for name, x in twin.theirs.named_parameters()}
    blocks = sum(n for name, n in theirs.items() if ".h." in name)
    table = theirs["transformer.wte.weight"]

    assert parameters(twin.model) == {
        "embed": table,
        "pos_embed": theirs["transformer.wpe.weight"],
        "blocks": blocks,
        "ln_final": 2 * 8,
        "unembed": table + 50257,
        "total": 2 * table + 40 * 8 + blocks + 16 + 50257,
    }


def missing_keys(model: Transformer) -> list[str]:
    return unmatched(parameters_of(model), model.cfg)[0]


@pytest.mark.network
def test_missing_keys(gpt2: Both, agree: Agree) -> None:
    """None."""
    agree(missing_keys(gpt2.model))


def test_missing_keys_offline(twin: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, and one that is taken away is named."""
    assert missing_keys(twin.model) == []
    monkeypatch.delattr(twin.model.blocks[1].attn, "W_O")
    assert missing_keys(twin.model) == ["blocks.1.attn.W_O"]


def differences(model: Transformer, tokens: t.Tensor, theirs: Any) -> dict[str, float]:
    """Largest absolute differences from theirs, each module on their own tensors."""
    wanted = {name: array_of(x) for name, x in activations(theirs, tokens).items()}
    ours = module_by_module(model, tokens, wanted)
    with t.no_grad():
        block = model.blocks[0](t.from_numpy(wanted["blocks.0.resid_pre"]))
        logits = model(tokens)
    found = {kind: (ours[name], name) for kind, name in MODULES.items()}
    found |= {"block": (block, "blocks.0.resid_post"), "logits": (logits, "unembed.logits")}
    return {
        kind: float(np.abs(array_of(x) - wanted[name]).max()) for kind, (x, name) in found.items()
    }


@pytest.mark.network
def test_differences(gpt2: Both, sentence: t.Tensor, agree: Agree) -> None:
    """Rounding, in every kind of module, in a block and in the whole model."""
    agree(differences(gpt2.model, sentence, gpt2.theirs))


@pytest.mark.parametrize(
    ("parameter", "wrong"),
    [
        ("embed.W_E", {"embed", "logits"}),
        ("pos_embed.W_pos", {"pos_embed", "logits"}),
        ("blocks.0.ln1.b", {"ln1", "block", "logits"}),
        ("blocks.0.attn.b_O", {"attn", "block", "logits"}),
        ("blocks.0.mlp.b_out", {"mlp", "block", "logits"}),
        ("blocks.1.mlp.b_out", {"logits"}),
        ("unembed.b_U", {"unembed", "logits"}),
    ],
)
def test_differences_offline(
    twin: Both, sentence: t.Tensor, parameter: str, wrong: set[str]
) -> None:
    """In float64 there are none; of a moved parameter its module's is the move, others' are 0."""
    assert max(differences(twin.model, sentence, twin.theirs).values()) < 1e-12
    moved = twin.model.get_parameter(parameter).data
    before = moved.clone()
    try:
        moved[..., 3] += 0.25
        found = differences(twin.model, sentence, twin.theirs)
    finally:
        moved.copy_(before)

    assert {kind for kind, far in found.items() if far > 1e-12} == wrong
    if len(wrong) > 1:
        assert found[parameter.split(".")[-2]] == pytest.approx(0.25, abs=1e-12)


def same_argmax(model: Transformer, tokens: t.Tensor, theirs: Any) -> bool:
    with t.no_grad():
        return t.equal(model(tokens).argmax(-1), theirs(tokens).logits.argmax(-1))


@pytest.mark.network
def test_same_argmax(gpt2: Both, sentence: t.Tensor, agree: Agree) -> None:
    """The likeliest token is Hugging Face's everywhere."""
    agree(same_argmax(gpt2.model, sentence, gpt2.theirs))


def test_same_argmax_offline(twin: Both, sentence: t.Tensor) -> None:
    """So it is in the twin, and no longer once one token's bias is raised."""
    assert same_argmax(twin.model, sentence, twin.theirs)
    with twin.model.hooks([("unembed.logits", lambda x, hook: x.index_fill(2, t.tensor(5), 1e3))]):
        assert not same_argmax(twin.model, sentence, twin.theirs)


def next_tokens(model: Transformer, tokenizer: Tokenizer) -> list[str]:
    with t.no_grad():
        return lines.next_tokens(model(tokenizer.to_tokens(TEXT))[0], tokenizer)


@pytest.mark.network
def test_next_tokens(gpt2: Both, agree: Agree) -> None:
    """After ` on` comes ` the`, and so on."""
    agree(next_tokens(gpt2.model, gpt2.tokenizer))


def test_next_tokens_offline(twin: Both, sentence: t.Tensor) -> None:
    """They are Hugging Face's likeliest, and not all alike."""
    best = logits_of(twin.theirs, sentence).argmax(-1)

    assert next_tokens(twin.model, twin.tokenizer) == [twin.tokenizer.decode([i]) for i in best]
    assert len(set(best)) > 1


def first_pattern(model: Transformer, tokenizer: Tokenizer) -> list[list[float]]:
    name = "blocks.0.attn.attn_pattern"
    with t.no_grad():
        _, cache = model.run_with_cache(tokenizer.to_tokens(TEXT), names_filter=name)
    return cache[name][0, 0].tolist()


@pytest.mark.network
def test_first_pattern(gpt2: Both, agree: Agree) -> None:
    """Head 0 of layer 0 reads what the notes' table says."""
    agree(first_pattern(gpt2.model, gpt2.tokenizer))


def test_first_pattern_offline(twin: Both, sentence: t.Tensor) -> None:
    """The shares are Hugging Face's."""
    with t.no_grad():
        theirs = twin.theirs(sentence, output_attentions=True).attentions[0][0, 0]

    np.testing.assert_allclose(first_pattern(twin.model, twin.tokenizer), theirs, atol=1e-12)


def grades(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = tokenizer.to_tokens(TEXT)
    with t.no_grad():
        log_probs = get_log_probs(model(tokens), tokens)[0]
    return {
        "log_probs": log_probs.tolist(),
        "probabilities": log_probs.exp().tolist(),
        "loss": -log_probs.mean().item(),
        "mean_probability": log_probs.exp().mean().item(),
    }


@pytest.mark.network
def test_grades(gpt2: Both, agree: Agree) -> None:
    """4.578 nats, from six predictions."""
    agree(grades(gpt2.model, gpt2.tokenizer))


def test_grades_offline(twin: Both, sentence: t.Tensor) -> None:
    """The numbers are those of a softmax of Hugging Face's logits, in NumPy."""
    odds = np.exp(logits_of(twin.theirs, sentence))
    given = (odds / odds.sum(-1, keepdims=True))[range(6), sentence[0, 1:]]
    with t.no_grad():
        loss = twin.theirs(sentence, labels=sentence).loss

    found = grades(twin.model, twin.tokenizer)
    np.testing.assert_allclose(found["probabilities"], given, rtol=1e-10)
    np.testing.assert_allclose(found["log_probs"], np.log(given), rtol=1e-10)
    assert found["mean_probability"] == pytest.approx(given.mean(), rel=1e-10)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-6)


def greedy_text(model: Transformer, tokenizer: Tokenizer) -> str:
    args = SamplingArgs(temperature=0.0, max_new_tokens=N_NEW)
    return Sampler(model, tokenizer).complete(GREEDY_PROMPT, args).text


@pytest.mark.network
def test_greedy_text(gpt2: Both, agree: Agree) -> None:
    """All the way down to the top of the mountain."""
    agree(greedy_text(gpt2.model, gpt2.tokenizer))


def test_greedy_text_offline(twin: Both) -> None:
    """The text is that of Hugging Face's `generate`."""
    ((_, ids),) = generated(twin, GREEDY_PROMPT, N_NEW, 1)

    assert greedy_text(twin.model, twin.tokenizer) == twin.tokenizer.decode(ids)


def found_by(model: Transformer, tokenizer: Tokenizer, args: BeamArgs) -> dict[str, Any]:
    found = beam_search(model, tokenizer, BEAM_PROMPT, args)
    return {"sums": [one.logprob_sum for one in found], "texts": [one.text for one in found]}


def three_beams(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    return found_by(model, tokenizer, BeamArgs(max_new_tokens=12))


@pytest.mark.network
def test_three_beams(gpt2: Both, agree: Agree) -> None:
    """Three texts about a kid at the movies, with their sums."""
    agree(three_beams(gpt2.model, gpt2.tokenizer))


def test_three_beams_offline(twin: Both) -> None:
    """Texts and sums are those of Hugging Face's `generate`."""
    require_same(twin, three_beams(twin.model, twin.tokenizer), generated(twin, n_new=12, beams=3))


def one_beam(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    return found_by(model, tokenizer, BeamArgs(max_new_tokens=12, num_beams=1))


@pytest.mark.network
def test_one_beam(gpt2: Both, agree: Agree) -> None:
    """Greedy finds a nerd, who is less likely."""
    agree(one_beam(gpt2.model, gpt2.tokenizer))


def test_one_beam_offline(twin: Both) -> None:
    """The text is that of `generate`, its sum that of Hugging Face's log-softmax."""
    require_same(twin, one_beam(twin.model, twin.tokenizer), generated(twin, n_new=12, beams=1))


def beams_without_repetition(model: Transformer, tokenizer: Tokenizer) -> dict[str, Any]:
    args = BeamArgs(max_new_tokens=25, num_return_sequences=1, no_repeat_ngram_size=3)
    return found_by(model, tokenizer, args)


@pytest.mark.network
def test_beams_without_repetition(gpt2: Both, agree: Agree) -> None:
    """The kid's father is a movie star."""
    agree(beams_without_repetition(gpt2.model, gpt2.tokenizer))


def test_beams_without_repetition_offline(twin: Both) -> None:
    """Text and sum are those of `generate` with the ban, which is not idle here."""
    with_ban = generated(twin, n_new=25, beams=3, no_repeat_ngram_size=3)[:1]
    without = generated(twin, n_new=25, beams=3)[:1]

    assert with_ban[0][1] != without[0][1]
    require_same(twin, beams_without_repetition(twin.model, twin.tokenizer), with_ban)


def logits_of(theirs: Any, tokens: t.Tensor) -> np.ndarray:
    with t.no_grad():
        return theirs(tokens).logits[0].numpy()


def generated(
    twin: Both, prompt: str = BEAM_PROMPT, n_new: int = 12, beams: int = 1, **bans: int
) -> list[tuple[float, list[int]]]:
    """What Hugging Face's `generate` finds, best first: sums of log-probabilities, new tokens."""
    ids = t.tensor([twin.tokenizer.encode(prompt, prepend_bos=True)])
    several = {"length_penalty": 0.0, "num_return_sequences": beams} if beams > 1 else {}
    settings = {"num_beams": beams, "max_new_tokens": n_new, "do_sample": False}
    mask = t.ones_like(ids)
    with t.no_grad():
        found = twin.theirs.generate(
            ids, attention_mask=mask, pad_token_id=-1, **settings, **several, **bans
        )
    return [(summed(twin.theirs, row, ids.shape[1]), row[ids.shape[1] :].tolist()) for row in found]


def summed(theirs: Any, row: t.Tensor, n_given: int) -> float:
    """The log-probabilities of all tokens after the first few, in one reading."""
    odds = logits_of(theirs, row[None])[n_given - 1 : -1]
    log_probs = odds - np.log(np.exp(odds).sum(-1, keepdims=True))
    return float(log_probs[range(len(odds)), row[n_given:]].sum())


def require_same(twin: Both, found: dict[str, Any], theirs: list[tuple[float, list[int]]]) -> None:
    assert found["texts"] == [BEAM_PROMPT + twin.tokenizer.decode(ids) for _, ids in theirs]
    np.testing.assert_allclose(found["sums"], [total for total, _ in theirs], atol=1e-9)
