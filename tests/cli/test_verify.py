"""`pvml verify`: what it prints, its exit codes, and what it refuses."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.nn.functional as F
from torch import Tensor

from pvml.cli import verify as command
from pvml.cli.main import main
from pvml.cli.verify_module import ModuleCheck
from pvml.modules import mlp

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
    ],
)
def test_what_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input ends with exit code 2 and a message that names it."""
    assert main(["verify", "--against", "float64", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_a_module_of_ones_own_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """--module and what belongs to it reach the check of a reader's class."""
    seen: list[ModuleCheck] = []
    monkeypatch.setattr(command, "verify_module", lambda check: seen.append(check) or 0)
    assert main(["verify", "--module", "mine.py:Mine", "--kind", "mlp", "--d-model", "6"]) == 0
    assert (seen[0].module, seen[0].kind, seen[0].d_model) == ("mine.py:Mine", "mlp", 6)
