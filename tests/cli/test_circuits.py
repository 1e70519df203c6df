"""`pvml circuits MODEL COMMAND`: the library's numbers, in text of 80 columns and in JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.circuits.heads.scores import head_scores
from pvml.circuits.paths.logit_paths import expand
from pvml.circuits.paths.score_paths import expand_score
from pvml.circuits.weights.copying import copying_scores
from pvml.circuits.weights.maps import bigram, ov, qk
from pvml.circuits.weights.scales import unit_of
from pvml.cli.circuits import COMMANDS
from pvml.cli.main import main
from pvml.config import Config
from pvml.data.rows import pack
from pvml.data.sources import open_corpus
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.plots.terminal import number
from pvml.runs.format import RunDir

SIZES: dict[str, Any] = {"d_model": 10, "n_heads": 2, "d_head": 5, "n_ctx": 21}
DATA = ["--data", "storybook:8"]
TEXT = "the cat sat on the mat"


def saved(path: Path, **changes: Any) -> RunDir:
    """A run with three kept checkpoints of random weights."""
    tokenizer = Tokenizer.train(list(open_corpus("storybook:30")), 300)
    sizes = {**SIZES, "n_layers": 2, "attn_only": True, "init_range": 0.6, **changes}
    cfg = Config(**sizes, d_vocab=tokenizer.d_vocab)
    run = RunDir.create(path, cfg=cfg, tokenizer=tokenizer, args={})
    for step in (0, 5, 10):
        run.log({"step": step, "loss": 5.0 - step / 10})
        run.save_checkpoint(step, Transformer(cfg, seed=step), {}, keep=True)
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two layers, of none, and of one with an MLP."""
    folder = tmp_path_factory.mktemp("circuits")
    saved(folder / "two")
    saved(folder / "none", n_layers=0)
    saved(folder / "mlp", n_layers=1, attn_only=False, d_mlp=7)
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the runs, writing into a pipe."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def model(folder: Path) -> Transformer:
    """That of the run of two layers."""
    return RunDir.open(folder / "two").load_model("cpu")


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    """The runs' own."""
    return RunDir.open(folder / "two").tokenizer()


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command; what it printed, which but for paths fits 80 columns."""

    def run(*words: str, code: int = 0) -> str:
        assert main(["circuits", *words, "--device", "cpu"]) == code
        out = capsys.readouterr().out
        assert [line for line in out.splitlines() if len(line) > 80 and "/" not in line] == []
        return out

    return run


@pytest.fixture
def found(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the command with --json; the one object that it printed."""

    def run(*words: str, code: int = 0) -> dict[str, Any]:
        assert main(["circuits", *words, "--device", "cpu", "--json"]) == code
        return dict(json.loads(capsys.readouterr().out))

    return run


def test_the_overview(told: Callable[..., str], found: Callable[..., dict[str, Any]]) -> None:
    """Every head beside its nulls, who composes, and which commands go on from there."""
    out = told("two", *DATA)
    lines = [line.split() for line in out.splitlines()]

    assert [line[0] for line in lines if line and line[0][:2] in ("0.", "1.")] == [
        *("0.0", "0.1", "1.0", "1.1")
    ]
    assert "model  two: the run in two\n       2 layers of 2 heads, attention only" in out
    assert "storybook:8" in out and " of 4 pairs beyond chance" in out
    assert [line[0] for line in lines[-len(COMMANDS) :]] == list(COMMANDS)
    values = found("two", *DATA)
    assert (values["command"], values["model"], values["seed"]) == ("overview", "two", 0)
    assert len(values["heads"]) == 4 * 10 and len(values["composition"]) == 12
    assert "This model has no heads" in told("none", *DATA)
    assert "Heads of one layer cannot read each other" in told("mlp", *DATA)


def test_heads_are_the_librarys(
    model: Transformer,
    tokenizer: Tokenizer,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
) -> None:
    """The flags reach `head_scores`: its scores, nulls and verdicts, on rows of the corpus."""
    rows = pack(tokenizer, open_corpus("storybook:8"), 13)
    tokens = rows.batch(range(len(rows)))
    flags = ["two", "heads", *DATA, "--n-ctx", "13", "--kinds", "induction", "--texts", "repeated"]
    values = found(*flags, "--n-random", "0", "--seed", "3")
    expected = head_scores(
        model, tokens, kinds=["induction"], texts=["repeated"], n_random=0, seed=3
    )

    assert [one["score"] for one in values["scores"]] == [one.score for one in expected]
    assert [one["p"] for one in values["scores"]] == [one.p for one in expected]
    assert [one["head"] for one in values["scores"]] == ["0.0", "0.1", "1.0", "1.1"]
    assert values["text"] == {
        "what": "storybook:8",
        "rows": len(tokens),
        "tokens_in_a_row": 13,
        "notes": [],
    }
    assert values["copying"] == [] and values["scores"][0]["random_p"] is None
    out = told(*flags, "--n-random", "0", "--seed", "3", "--top", "1")
    best = max(expected, key=lambda one: one.excess)
    assert f"{best.layer}.{best.head} {best.score:.2f}" in " ".join(out.split())
    assert "not asked" in out and "and 3 heads further from it" in out


def test_heads_pictures(found: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """One kind has the picture's own name, of several each has its own."""
    quick = ["two", "heads", *DATA, "--n-random", "0", "--plot", str(tmp_path / "a.svg")]
    one = found(*quick, "--kinds", "copying")["pictures"]
    two = found(*quick, "--kinds", "induction", "--kinds", "copying", "--texts", "natural")

    assert one == [str(tmp_path / "a.svg")]
    assert two["pictures"] == [
        str(tmp_path / "a-induction-natural.svg"),
        str(tmp_path / "a-copying.svg"),
    ]
    assert all(Path(path).is_file() for path in one + two["pictures"])


def test_copying_and_composition(
    model: Transformer, told: Callable[..., str], found: Callable[..., dict[str, Any]]
) -> None:
    """Scores, nulls and eigenvalues that add up to the scores; all pairs of different layers."""
    heads = found("two", "copying", "--seed", "2")["heads"]
    expected = copying_scores(model, seed=2)

    for one, score in zip(heads, expected, strict=True):
        values = t.view_as_complex(t.tensor(one["eigenvalues"], dtype=t.float64))
        assert one["score"] == score.score == pytest.approx(values.sum().real / values.abs().sum())
        assert (one["null_mean"], one["p"]) == (score.null_mean, score.p)
    pairs = found("two", "compose")["pairs"]
    assert [(one["kind"], one["writer"], one["reader"]) for one in pairs] == [
        (kind, writer, reader)
        for kind in "QKV"
        for writer in ("0.0", "0.1")
        for reader in ("1.0", "1.1")
    ]
    assert "0.0 " in told("two", "copying") and "K-composition: " in told("two", "compose")


def test_paths_add_up(
    model: Transformer,
    tokenizer: Tokenizer,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
) -> None:
    """Terms of the model's first choice, or of two tokens' difference, are its logits in all."""
    whole = expand(model, tokenizer.to_tokens(TEXT), quiet=True)
    first = int(whole.logits.argmax())
    values = found("two", "paths", TEXT, "--least", "0.05")

    assert values["token_id"] == first and values["token"] == tokenizer.decode([first])
    assert values["logit"] == pytest.approx(float(whole.logits[first]))
    assert values["total"] == pytest.approx(values["logit"], rel=1e-4)
    assert sum(term["nats"] for term in values["terms"]) == pytest.approx(values["total"])
    assert values["n_paths"] == len(whole.paths)
    paths = [value for name, value in whole.values(first) if name not in ("ln_final.b", "b_U")]
    assert 0 < values["n_pruned"] == sum(abs(value) < 0.05 for value in paths)
    minus = found("two", "paths", TEXT, "--position", "2", "--token", "a", "--minus", "b")
    there = expand(model, tokenizer.to_tokens(TEXT), 2, quiet=True)
    ids = tokenizer.encode("a")[0], tokenizer.encode("b")[0]
    assert minus["position"] == 2
    assert minus["logit"] == pytest.approx(there.logit(*ids))
    out = told("two", "paths", TEXT, "--top", "3")
    assert out.index(f"{len(whole.paths)} paths lead to the prediction at") < out.index(
        "first choice"
    )
    assert "add up to the logits" in out and "the model's own" in out
    none, one, *_ = whole.by_order(first)
    flat = " ".join(out.split())
    assert f"through no head {none:+.3f}, through 1 head {one:+.3f}, through 2 heads" in flat
    assert "only differences of two logits" in flat
    assert "only differences" not in told("two", "paths", TEXT, "--minus", "b")


def test_scores_add_up(
    model: Transformer,
    tokenizer: Tokenizer,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
) -> None:
    """The key that is read most unless another is given; pairs that are the head's own score."""
    tokens = tokenizer.to_tokens(TEXT)
    _, cache = model.run_with_cache(tokens, names_filter="blocks.1.attn.attn_pattern")
    most = int(cache["blocks.1.attn.attn_pattern"][0, 1, -1].argmax())
    values = found("two", "scores", TEXT, "--head", "1.1")
    other = found("two", "scores", TEXT, "--head", "1.1", "--query", "3", "--key", "1")

    assert (values["query"], values["key"]) == (tokens.shape[1] - 1, most)
    assert values["total"] == pytest.approx(values["score"], rel=1e-3, abs=1e-4)
    assert other["score"] == expand_score(model, tokens, (1, 1), 3, 1, quiet=True).score
    assert "which is what it reads most" in told("two", "scores", TEXT, "--head", "1.1")


def test_attention(told: Callable[..., str], found: Callable[..., dict[str, Any]]) -> None:
    """The patterns of the heads in question, however often the flag is given; rows add up to 1."""
    values = found("two", "attention", TEXT, "--head", "1.1", "--head", "0.0")
    both = found("two", "attention", TEXT, "--layer", "0")

    assert list(values["patterns"]) == ["0.0", "1.1"] and list(both["patterns"]) == ["0.0", "0.1"]
    pattern = t.tensor(values["patterns"]["1.1"])
    assert pattern.shape == (len(values["tokens"]),) * 2
    t.testing.assert_close(pattern.sum(1), t.ones(len(pattern)))
    assert told("two", "attention", TEXT, "--head", "1.1", "0.1").count("\n 0 <|endoftext") == 2


def test_tables_of_the_vocabulary(
    model: Transformer,
    tokenizer: Tokenizer,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
) -> None:
    """The strongest of the whole table are the dense one's; an excerpt is its entries."""
    for words, circuit in (
        (["ov", "0.1"], ov(model, (0, 1))),
        (["ov", "0.1>1.0", "--biases"], ov(model, (0, 1), (1, 0), biases=True)),
        (["qk", "1.0", "--keys-through", "0.1"], qk(model, (1, 0), keys_through=[(0, 1)])),
        (["bigram"], bigram(model)),
    ):
        dense = circuit.map.dense()
        values = found("two", *words, "--top", "3")
        best = [entry["value"] for entry in values["entries"]]
        assert best == pytest.approx(dense.flatten().topk(3).values.tolist(), rel=1e-5)
        assert values["favours_itself"] == pytest.approx(
            float((dense.argmax(1) == t.arange(len(dense))).double().mean())
        )
        lowest = found("two", *words, "--top", "1", "--lowest")["entries"][0]
        assert lowest["value"] == pytest.approx(float(dense.min()), rel=1e-5)
        assert values["circuit"] == circuit.name and values["holds"] == list(circuit.holds)
        n_stds = len(circuit.left_out)
        assert values["unit"] == unit_of(circuit) and len(values["left_out"]) == n_stds
        scale = values["typical_scale"]
        assert 0 < scale["low"] <= scale["factor"] <= scale["high"]
        out = " ".join(told("two", *words).split())
        assert number(best[0], best[0]) in out and f"× {scale['factor']:.3g} (median" in out
    a, b = (tokenizer.encode(one)[0] for one in "ab")
    table = ov(model, (0, 1)).map.dense()
    some = found("two", "ov", "0.1", "--read", "a", "b", "--write", "b")["entries"]
    assert [one["value"] for one in some] == pytest.approx([float(table[i, b]) for i in (a, b)])
    one_side = found("two", "ov", "0.1", "--write", "b", "--top", "2")["entries"]
    assert [one["row_id"] for one in one_side] == table[:, b].topk(2).indices.tolist()
    pair = told("two", "qk", "1.0", "--query", "a", "--key", "b")
    assert "rows: query: token" in pair and "score of the key (q · k × 2 stds)" in pair
    assert "(blocks.1.ln1 twice)" in " ".join(pair.split())


def test_survey_goes_on(
    told: Callable[..., str], found: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Some circuits now, the others later, in the same folder; where it stands is said."""
    out = told("two", "survey", "--out", str(tmp_path / "s"), "--only", "OV 0.*")
    values = found("two", "survey", "--out", str(tmp_path / "s"))

    flat = " ".join(out.split())
    assert "all 2 circuits that 'OV 0.*' asks for" in flat and "2 of the model's 8" in flat
    assert "OV nats × 2 stds" in flat
    assert "OV 0.1" in out and "OV 1.0" not in out
    assert values["missing"] == [] and len(values["scanned"]) == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "For full helptext, run: pvml circuits --help"),
        (["two", "headz"], "circuits has no command 'headz': did you mean heads?"),
        (["heads", "two"], "MODEL comes first: pvml circuits MODEL heads ..."),
        (["three", "copying"], "MODEL 'three' is not known"),
        (["two", "heads", "--kinds", "inductive"], "--kinds must be some of previous-token, "),
        (["two", "heads", "--n-random", "7"], "n_random must be 0 or at least 100 heads, got 7"),
        (["two", "heads", "--data", "none.txt"], "there is no corpus 'none.txt'"),
        (["two", "heads", *DATA, "--n-ctx", "99"], "--n-ctx must be 2 to 21 tokens for two, got"),
        (["two", "heads", "--n-ctx", "9"], "--n-ctx is the length of the rows of --data"),
        (["two", "copying", "--plot", "a.jpg"], "--plot must end in .png or .svg, got 'a.jpg'"),
        (["two", "copying", "--plot", "no/a.png"], "there is no folder no for the picture"),
        (["none", "copying"], "a copying score needs a model of at least 1 layer, and none has 0"),
        (["mlp", "compose"], "composition needs a model of at least 2 layers, and mlp has 1"),
        (["two", "paths", ""], "TEXT is empty: give a text to read"),
        (["two", "paths", "cat " * 30], "tokens, BOS included, and two reads at most 21"),
        (["two", "paths", TEXT, "--position", "40"], "position 40 is not in a sequence of"),
        (["two", "paths", TEXT, "--token", "zq"], "--token 'zq' is 2 tokens, 'z', 'q': give one"),
        (["two", "paths", TEXT, "--token", ""], "--token needs a token, and got an empty text"),
        (["two", "paths", TEXT, "--most-paths", "3"], "more than most_paths 3: raise it"),
        (["two", "scores", TEXT, "--head", "2.0"], "there is no head 2.0: this model has 2 layers"),
        (["two", "scores", TEXT, "--head", "two"], "a head is written layer.head, such as 1.4"),
        (["two", "attention", TEXT, "--layer", "2"], "there is no layer 2: this model has 0 to 1"),
        (["two", "attention", "c a t " * 3, "--plot", "no/a.png"], "there is no folder no for the"),
        (["two", "ov", "1.0>0.1"], "head 0.1 cannot read what 1.0 writes: give heads of rising"),
        (["two", "ov", "1.0", "--norms", "no"], "--norms must be folded or ignored, got 'no'"),
        (["none", "ov", "0.0"], "a head needs a model of at least 1 layer"),
        (["two", "skips", "--top", "0"], "--top must be at least 1, got 0"),
        (["two", "induction", "--search", "1.5"], "--search must be a share above 0 and up to 1"),
        (["two", "report", "--out", "two/config.json"], "two/config.json is a file: give --out"),
        (["two", "check", "two/config.json"], "is no report that this version reads"),
        (["two", "check", "nothing"], "nothing is missing, damaged or cut short"),
        (["two", "survey", "--out", "s", "--only", "XX"], "no circuit fits 'XX': they are OV 0.0"),
        (["two", "training", "--every", "0"], "--every must be at least 1 step, got 0"),
        (["gpt2", "training"], "training needs a run directory with checkpoints"),
        (["none", "training"], "induction over training needs a model of at least 1 layer"),
    ],
)
def test_bad_use(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is said on stderr in a line, with exit code 2, and nothing is written."""
    before = sorted(Path().rglob("*"))

    assert main(["circuits", *words]) == 2
    told = capsys.readouterr()
    assert message in " ".join((told.err + told.out).split())
    assert sorted(Path().rglob("*")) == before


def test_a_word_with_a_space_may_be_the_one(
    tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a token only lacks its space, the message says so."""
    word = next(
        text.strip()
        for text in tokenizer.to_str_tokens(range(tokenizer.d_vocab))
        if text.startswith(" ") and len(tokenizer.encode(text.strip())) > 1
    )
    assert main(["circuits", "two", "paths", TEXT, "--token", word]) == 2
    assert f": {' ' + word!r} is one" in capsys.readouterr().err


def test_mlps_that_are_passed_by_are_said(told: Callable[..., str]) -> None:
    """A circuit of a model with MLPs says that they are passed by, or frozen."""
    assert "MLPs: passed by" in told("mlp", "ov", "0.0", "--read", "a")
    assert "what each MLP adds" in " ".join(told("mlp", "paths", TEXT).split())


def test_help_says_how_things_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Chains of heads, bundled models: what may be given is in the help, as it is given."""
    assert main(["circuits", "two", "qk", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--keys-through HEAD[>HEAD...]" in out and 'the lowest first: "0.3>1.4"' in out
    assert main(["circuits", "--help"]) == 0
    assert "attn-1l, attn-2l" in capsys.readouterr().out


def test_skips_say_what_they_are_in(
    told: Callable[..., str], found: Callable[..., dict[str, Any]]
) -> None:
    """What LayerNorm left out, what that comes to, and that another text would order them anew."""
    words = ["two", "skips", "--head", "0.0", "--top", "1"]
    values = found(*words)
    out = " ".join(told(*words).split())

    assert values["skip_trigrams"][0]["unit"] == "nats x std"
    assert f"left out (ln_final), typically × {values['typical_scale']['factor']:.3g} (" in out
    assert "with --data tokens are drawn as the text has them" in out
    text = " ".join(told(*words, *DATA).split())
    assert "drawn as often as they stand in the text" in text and "without --data tokens" in text
