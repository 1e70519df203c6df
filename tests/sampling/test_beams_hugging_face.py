"""Beam search against Hugging Face's `generate`: the same tokens and scores, setting by setting."""

import random
from functools import cache
from typing import Any

import pytest
import torch as t

from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2
from pvml.reference.names import config_from_hugging_face, from_hugging_face
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beams import search

N_MODELS = 25
SETTINGS = 8
"""For each model; 200 in all."""


@cache
def pair(seed: int) -> tuple[Any, Transformer]:
    """Their random model and ours with its weights, in float64."""
    draw = random.Random(seed)
    d_vocab = draw.choice([19, 31, 53])
    sizes = {"d_model": 6, "n_heads": 2, "d_mlp": 7, "n_layers": draw.choice([1, 2])}
    theirs = tiny_gpt2(seed, n_ctx=23, d_vocab=d_vocab, **sizes)
    cfg = config_from_hugging_face(theirs.config.to_dict())
    ours = Transformer(cfg).double()
    ours.load_state_dict(from_hugging_face(theirs.state_dict(), cfg))
    return theirs, ours


def setting(draw: random.Random, num_beams: int, d_vocab: int) -> tuple[list[int], BeamArgs]:
    """A prompt and the knobs."""
    prompt = [draw.randrange(d_vocab) for _ in range(draw.randint(1, 7))]
    args = BeamArgs(
        max_new_tokens=draw.randint(2, 10),
        num_beams=num_beams,
        num_return_sequences=draw.randint(1, num_beams),
        length_penalty=draw.choice([0.0, 1.0, 2.0]),
        early_stopping=draw.choice([True, False, "never"]),
        no_repeat_ngram_size=draw.choice([0, 0, 1, 2, 3]),
    )
    return prompt, args


def expected(
    theirs: Any, prompt: list[int], args: BeamArgs, eos: int | None
) -> list[tuple[list[int], float | None]]:
    """What their `generate` finds: new tokens and score, best first."""
    settings: dict[str, Any] = {"num_beams": args.num_beams, "max_new_tokens": args.max_new_tokens}
    if args.no_repeat_ngram_size:
        settings["no_repeat_ngram_size"] = args.no_repeat_ngram_size
    if args.num_beams > 1:
        settings |= {
            "num_return_sequences": args.num_return_sequences,
            "length_penalty": args.length_penalty,
            "early_stopping": args.early_stopping,
        }
    theirs.generation_config.eos_token_id = eos
    theirs.generation_config.pad_token_id = -1  # cannot be mistaken for a token
    found = theirs.generate(
        t.tensor([prompt]),
        attention_mask=t.ones(1, len(prompt), dtype=t.long),
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **settings,
    )
    rows = found.sequences[:, len(prompt) :].tolist()
    scores = found.sequences_scores.tolist() if args.num_beams > 1 else [None]
    return [
        ([token for token in row if token >= 0], score)
        for row, score in zip(rows, scores, strict=True)
    ]


@pytest.mark.parametrize("seed", range(N_MODELS))
def test_the_same_as_hugging_face(seed: int) -> None:
    """On 200 random models and settings: tokens equal, scores within 1e-5, in the same order."""
    theirs, ours = pair(seed)
    draw = random.Random(seed)
    for num_beams in range(1, SETTINGS + 1):
        prompt, args = setting(draw, num_beams, ours.cfg.d_vocab)
        # mostly a token that the model likes, or searches would hardly ever meet it
        with t.no_grad():
            liked = ours(t.tensor([prompt]))[0].mean(0).topk(3).indices.tolist()
        eos = draw.choice([*liked, None])
        found = search(ours, prompt, args, eos_token_id=eos)
        wanted = expected(theirs, prompt, args, eos)

        context = f"model {seed}: {args}, eos {eos}"
        assert [list(text.ids) for text in found.results] == [ids for ids, _ in wanted], context
        for text, (_, score) in zip(found.results, wanted, strict=True):
            if score is not None:
                assert found.score(text) == pytest.approx(score, abs=1e-5), context
