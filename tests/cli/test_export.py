"""`pvml export`: from a run to a folder for another library, by exit code and by what is told."""

from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.export import pushing
from pvml.loading import load
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

STORIES = [f"The {word} sat on the red mat. 🙂" for word in ("cat", "dog", "bird", "fish")]


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """In the current folder, runs/small: tied, as every form can hold it, trained by nobody."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer.train(STORIES, 270)
    sizes: dict[str, Any] = {"d_model": 12, "n_heads": 3, "n_layers": 1, "n_ctx": 11}
    cfg = Config(**sizes, d_vocab=tokenizer.d_vocab, init_range=0.5, tie_embeddings=True)
    data = {"source": "stories.txt", "tokenizer": "bpe:270", "documents": 4}
    run = RunDir.create("runs/small", cfg=cfg, tokenizer=tokenizer, args={"seed": 1}, data=data)
    for step in (1, 2):
        run.save_checkpoint(step, Transformer(cfg, seed=step), {})
    return run


def test_a_run_goes_out_and_comes_in(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """The certificate is printed; the card holds the command; the last step's weights are there."""
    assert main(["export", "small", "--to", "nanogpt", "out/there"]) == 0
    out, err = capsys.readouterr()
    assert "\npassed\n" in out and "out/there holds small for nanogpt" in out and err == ""
    card = Path("out/there/README.md").read_text()
    assert "$ pvml train --data stories.txt --tokenizer bpe:270 --name small" in card
    assert "--seed 1" in card
    back, ours = load("out/there/ckpt.pt", "cpu").model, run.load_model("cpu")
    tokens = t.tensor([[0, 5, 9, 13]])
    assert t.equal(back(tokens), ours(tokens))


@pytest.mark.parametrize("spelt", [["--to", "transformer-lens"], ["--to=transformer-lens"]])
def test_the_form_may_have_the_librarys_hyphen(run: RunDir, spelt: list[str]) -> None:
    """Both spellings are one form; a folder's name keeps its own."""
    assert main(["export", "small", *spelt, "small-lens"]) == 0
    assert Path("small-lens/model.safetensors").is_file()


@pytest.mark.parametrize("dtype", [t.float64, t.bfloat16, t.float32])
def test_an_imported_model_goes_out_as_it_came_in(run: RunDir, dtype: t.dtype) -> None:
    """Import and export move no number and no dtype, wide or narrow; `load` never narrows one."""
    weights = {name: x.to(dtype) for name, x in run.load_model().state_dict().items()}
    weights["embed.W_E"][0, 0] = 1.0 + 2.0**-40  # of these, float64 alone has it
    weights["unembed.W_U"] = weights["embed.W_E"].T.contiguous()
    t.save(weights, "alone.pt")
    run.tokenizer().save("tokenizer.json")
    assert main(["import", "alone.pt", "mine"]) == 0
    assert main(["export", "mine", "--to", "nanogpt", "there"]) == 0

    told = t.load("there/ckpt.pt", weights_only=True)["model"]["transformer.wte.weight"]
    assert told.dtype == dtype and t.equal(told, weights["embed.W_E"])
    kept = load("mine", "cpu").model
    assert kept.dtype == (t.float64 if dtype == t.float64 else t.float32)
    assert t.equal(kept.embed.W_E.to(dtype), weights["embed.W_E"])


def test_a_checkpoint_goes_out(run: RunDir) -> None:
    """An earlier step's weights, by the checkpoint's folder."""
    assert main(["export", "runs/small/checkpoints/step-1", "there", "--to", "nanogpt"]) == 0
    back, ours = load("there/ckpt.pt", "cpu").model, run.load_model("cpu", step=1)
    tokens = t.tensor([[0, 5, 9, 13]])
    assert t.equal(back(tokens), ours(tokens))
    assert "| steps | 1 |" in Path("there/README.md").read_text()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["small", "--to", "nanogpt", "full"], "full is not empty"),
        (["nothing", "--to", "hf", "there"], "MODEL 'nothing' is not known"),
        (["attn-1l", "--to", "hf", "there"], "it has no MLPs"),
        (["small", "--to", "hf", "--pad-vocab", "there"], "only nanogpt's vocabulary"),
        (["small", "--to", "hf", "--private", "there"], "--private is about the repository"),
        (["small", "--to", "hf", "--push", "a/b/c", "there"], "names no repository on the hub"),
    ],
)
def test_bad_use_is_told_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    """Exit code 2, one line, and no folder."""
    Path("full").mkdir()
    Path("full/mine").write_text("mine")
    assert main(["export", *flags]) == 2
    assert told in capsys.readouterr().err
    assert not Path("there").exists() and sorted(p.name for p in Path().iterdir()) == [
        "full",
        "runs",
    ]


def test_a_failed_certificate_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nanoGPT would compute otherwise is told on stderr, and no folder is there."""
    from pvml.export import nanogpt

    wrong = nanogpt.to_nanogpt

    def shifted(weights: Any, cfg: Config, **options: Any) -> Any:
        moved = {**weights, "pos_embed.W_pos": weights["pos_embed.W_pos"].roll(1, 0)}
        return wrong(moved, cfg, **options)

    monkeypatch.setattr(nanogpt, "to_nanogpt", shifted)
    assert main(["export", "small", "--to", "nanogpt", "there"]) == 1
    err = capsys.readouterr().err
    assert "nothing was kept in there" in err and "FAILED" in err
    assert [p.name for p in Path().iterdir()] == ["runs"]


def test_push_uploads_what_was_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is whole when it is uploaded, and the address is told."""
    seen: dict[str, Any] = {}

    def push(folder: Path, repo: str, *, private: bool) -> str:
        seen.update(files={path.name for path in folder.iterdir()}, private=private)
        return f"https://hub.example/{repo}"

    monkeypatch.setattr(pushing, "push_folder", push)
    flags = ["--to", "nanogpt", "--push", "me/small", "--private"]
    assert main(["export", "small", "there", *flags]) == 0
    assert "uploaded to https://hub.example/me/small" in capsys.readouterr().out
    assert seen["files"] == {"ckpt.pt", "tokenizer.json", "certificate.json", "README.md"}
    assert seen["private"] is True
    assert "`hf download me/small --local-dir there`" in Path("there/README.md").read_text()


def test_without_the_hub_the_folder_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offline, --push is told clearly after the export, and the export is there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["export", "small", "there", "--to", "nanogpt", "--push", "me/small"]) == 2
    out, err = capsys.readouterr()
    assert "passed" in out and "HF_HUB_OFFLINE is set. there is complete and stays" in err
    assert Path("there/ckpt.pt").is_file()
