"""`pvml verify`: what it prints, its exit codes, and what it refuses."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch as t
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from pvml.cli import verify as command
from pvml.cli.main import main
from pvml.cli.verify_module import ModuleCheck
from pvml.config import Config
from pvml.loading import hub, meaning
from pvml.modules import attention, mlp
from pvml.modules.transformer import Transformer
from pvml.reference.names_out import to_nanogpt

CPU = ["--device", "cpu"]
FAST = ["--n-layers", "1", "--n-tokens", "9", *CPU]


def verify(*arguments: str) -> int:
    return main(["verify", *arguments, *FAST])


def test_a_random_model_is_proved_right(capsys: pytest.CaptureFixture[str]) -> None:
    """With no MODEL: a table of every tensor both ways, and the count of what agrees."""
    assert verify("--against", "float64", "--backward") == 0
    out = capsys.readouterr().out
    assert "a random model, seed 0: d_model 21, n_heads 3, n_layers 1;" in out
    assert "all moved off their defaults\n" in out
    assert "float64 on cpu, random tokens (2, 9), against the float64 NumPy reference" in out
    assert ["blocks.0.attn.attn_pattern", "(2,", "3,", "9,", "9)"] in [
        line.split()[:5] for line in out.splitlines()
    ]
    assert "39 of 39 named tensors and 45 of 45 gradients" in out.splitlines()[-3]


def test_unset_it_is_hugging_faces(capsys: pytest.CaptureFixture[str]) -> None:
    """A GPT-2 is compared with Hugging Face's where that is installed; b_U stays 0, and it says."""
    pytest.importorskip("transformers", reason="needs the extra hub", exc_type=ImportError)
    assert verify("--brief", "--dtype", "bfloat16") == 0
    out = capsys.readouterr().out
    assert "but b_U" in out and "against Hugging Face's GPT2LMHeadModel" in out
    assert "blocks.0.attn.z" not in out


def test_the_verdict_says_how_much_was_compared_with_whom(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of 39 tensors Hugging Face's hooks reach 4 before the block, 18 in it and 4 after it."""
    pytest.importorskip("transformers", reason="needs the extra hub", exc_type=ImportError)
    assert verify("--brief", "--backward") == 0
    assert (
        "\n26 of 26 named tensors and 44 of 44 gradients agree with Hugging Face's GPT2LMHeadModel "
        "(float64)\n13 of 13 named tensors, which it does not show, agree with the float64 NumPy "
        "reference\n"
    ) in capsys.readouterr().out


def test_who_disagrees_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mask that Hugging Face's does not show is wrong by the formulae, not by theirs."""
    pytest.importorskip("transformers", reason="needs the extra hub", exc_type=ImportError)

    def looser(n_q: int, n_k: int, real: object, device: t.device) -> Tensor:
        return t.ones(n_q, n_k, dtype=t.bool).triu(2)

    monkeypatch.setattr(attention, "cannot_attend", looser)
    assert verify("--brief") == 1
    out, err = capsys.readouterr()
    assert "does not agree with the float64 NumPy reference: first blocks.0.attn.mask" in err
    (line,) = (line for line in out.splitlines() if line.startswith("blocks.0.attn.mask "))
    assert line.endswith("  WRONG (formulae)")


def test_what_no_gpt2_can_be_is_compared_with_the_formulae(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unset: float64 with the reason why not hf. Asked for hf: exit code 2 with the reason."""
    assert verify("--brief", "--attn-only", "--positions", "shortformer") == 0
    out = capsys.readouterr().out
    assert "against the float64 NumPy reference" in out and "it has no MLPs" in out
    assert verify("--attn-only", "--against", "hf") == 2
    assert "no MLPs" in capsys.readouterr().err


def test_a_run_is_checked_with_its_own_weights(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run directory: its own weights, in float64, and said so."""
    assert main(["verify", str(finished_run), "--brief", *CPU]) == 0
    out = capsys.readouterr().out
    assert "with its own weights" in out and "agree with the float64 NumPy reference" in out


def test_hugging_faces_folder_is_read_by_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their library reads a folder of theirs itself, in silence; no tokenizer is asked for."""
    huggingface = pytest.importorskip(
        "pvml.reference.huggingface", reason="needs the extra hub", exc_type=ImportError
    )
    theirs = huggingface.tiny_gpt2(seed=0, n_layers=1, d_vocab=53)
    theirs.save_pretrained(tmp_path / "gpt")
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "gpt"), "--brief", "--backward", *CPU]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # the library's advice and its progress bar
    assert "is not judged" not in out
    assert "which Hugging Face's library reads for itself" in out
    assert "parameters: 22 of 22 agree" in out


@pytest.mark.parametrize("file", ["ex-tl/model.safetensors", "nanoc/ckpt.pt"])
def test_a_file_in_a_folder_is_not_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    """FOLDER/FILE reads as owner/name does; where the file is here, no other is looked for."""
    pytest.importorskip("transformers", reason="needs the extra hub", exc_type=ImportError)

    def asked(word: str) -> Path:
        pytest.fail(f"the hub was asked for {word}")

    for module in (hub, meaning):
        monkeypatch.setattr(module, "hub_folder", asked)
    monkeypatch.chdir(tmp_path)
    path = Path(file)
    path.parent.mkdir()
    cfg = Config(d_model=6, n_heads=2, n_layers=1, n_ctx=11, d_vocab=29, tie_embeddings=True)
    weights = Transformer(cfg, seed=0).double().state_dict()
    if path.suffix == ".pt":
        sizes = {"n_layer": 1, "n_head": 2, "n_embd": 6, "block_size": 11, "vocab_size": 29}
        sizes |= {"bias": True, "dropout": 0.0}
        t.save({"model": to_nanogpt(weights, cfg), "model_args": sizes}, path)
    else:
        save_file({name: x.contiguous() for name, x in weights.items()}, path)
        path.with_name("config.json").write_text(json.dumps({"model": cfg.to_dict()}))
    assert main(["verify", file, "--brief", *CPU]) == 0
    out = capsys.readouterr().out
    assert "against Hugging Face's GPT2LMHeadModel" in out
    assert "how the file was read is not judged here" in out


def test_a_model_on_the_hub_is_read_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """owner/name: Hugging Face's library reads the folder in the cache that PvML has read."""
    huggingface = pytest.importorskip(
        "pvml.reference.huggingface", reason="needs the extra hub", exc_type=ImportError
    )
    folder = tmp_path / "snapshot"
    huggingface.tiny_gpt2(seed=0, n_layers=1).save_pretrained(folder)
    monkeypatch.setattr(meaning, "hub_folder", lambda word: folder)
    assert main(["verify", "some/one", "--brief", *CPU]) == 0
    out = capsys.readouterr().out
    assert "some/one on the Hugging Face hub" in out
    assert "parameters: 22 of 22 agree" in out


def test_a_wrong_model_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first wrong tensor and the cause on stdout, one line on stderr."""

    def erf(x: Tensor, approximate: str) -> Tensor:
        return F.gelu(x)

    monkeypatch.setattr(mlp, "F", SimpleNamespace(gelu=erf))
    assert verify("--against", "float64", "--brief") == 1
    out, err = capsys.readouterr()
    assert "first wrong: blocks.0.mlp.post (named tensors, module by module)" in out
    assert "likely cause: the GELU is the erf form" in out
    assert "blocks.0.mlp.pre" not in out
    assert "does not agree" in err and "blocks.0.mlp.post" in err


def test_seeds_compare_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    """--seeds prints each tensor's error ratio and the rule's verdict; float64 has none."""
    code = verify("--against", "float64", "--dtype", "float32", "--seeds", "3")
    out = capsys.readouterr().out
    assert "float32, 3 models" in out and "ratio: median" in out
    assert code == (0 if "as near the truth" in out else 1)
    assert verify("--seeds", "3") == 2
    assert "--dtype float32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["attn-1l", "--d-model", "8"], "--d-model shape a random model"),
        (["--kind", "mlp"], "--kind"),
        (["--seeds", "0"], "--seeds"),
        (["--batch-size", "0"], "--batch-size"),
        (["--n-tokens", "0"], "--n-tokens"),
        (["--n-tokens", "74"], "n_ctx of 73"),
        (["--n-tokens", "1", "--backward"], "at least 2 tokens"),
        (["--d-model", "22"], "not a multiple"),
        (["--d-model", "2", "--n-heads", "1", "--backward"], "d_model 2 gives the same"),
        (["--seeds", "2", "--dtype", "bfloat16"], "not bfloat16"),
        (["no-such-model"], "no-such-model"),
        (["--device", "mars"], "mars"),
        (["--seeds", "2", "--dtype", "float32", "--json"], "leave --seeds out"),
        (["--module", "mine.py", "--json"], "--against cannot be given with --module"),
    ],
)
def test_what_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input ends with exit code 2 and a message that names it, before anything is printed."""
    assert main(["verify", "--against", "float64", *arguments]) == 2
    out, err = capsys.readouterr()
    assert complaint in err and not out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--backward", *FAST], "leave --backward out"), (["attn-1l", *CPU], "shortformer")],
)
def test_what_transformer_lens_cannot_is_refused_at_once(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No header of a comparison that does not come: the reason on stderr, and nothing else."""
    pytest.importorskip("transformer_lens", reason="needs the extra lens", exc_type=ImportError)
    assert main(["verify", "--against", "transformer_lens", *arguments]) == 2
    out, err = capsys.readouterr()
    assert complaint in err and not out


def test_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line: the verdict as in the text, and every tensor both ways; --brief, what is wrong."""
    assert verify("--against", "float64", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert (found["command"], found["agrees"], found["tokens"]) == ("verify", True, [2, 9])
    assert found["verdict"].startswith("39 of 39 named tensors agree with")
    assert [row["name"] for row in found["rows"]].count("unembed.logits") == 2
    assert {row["verdict"] for row in found["rows"]} == {"ok"}

    def late(model: Any, read: Any, out: Tensor) -> Tensor:
        return out.index_put((t.tensor(0), t.tensor(0), t.tensor(0)), t.tensor(t.inf).double())

    right = Transformer.forward
    monkeypatch.setattr(
        Transformer, "forward", lambda self, *read, **more: late(self, read, right(self, *read))
    )
    assert verify("--against", "float64", "--json", "--brief") == 1
    found = json.loads(capsys.readouterr().out)
    row, unwatched = found["rows"]
    assert unwatched == {**row, "name": "what it returns when nobody looks"}
    assert row == {
        "section": "named tensors",
        "way": "end to end",
        "name": "what the model returns",
        "shape": [2, 9, 53],
        "against": "the float64 NumPy reference",
        **dict.fromkeys(("absolute", "relative", "ulps")),
        "allowed": 1e-12,
        "verdict": "WRONG",
    }
    assert not found["agrees"] and "first wrong: what the model returns" in found["verdict"]


def test_a_module_of_ones_own_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """--module and what belongs to it reach the check of a reader's class."""
    seen: list[ModuleCheck] = []
    monkeypatch.setattr(command, "verify_module", lambda check: seen.append(check) or 0)
    assert main(["verify", "--module", "mine.py:Mine", "--kind", "mlp", "--d-model", "6"]) == 0
    assert (seen[0].module, seen[0].kind, seen[0].d_model) == ("mine.py:Mine", "mlp", 6)
