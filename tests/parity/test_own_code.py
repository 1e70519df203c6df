"""A reader's class is found in its file; what the file does wrong is told by its line."""

from pathlib import Path
from typing import Any

import pytest

from pvml.errors import PvmlError
from pvml.parity.own_code import OwnError, find_class, guess_kind


def test_which_kind_a_name_tells() -> None:
    """The seven names are told apart, and some that others use; other names tell nothing."""
    ours = {
        "Embed": "embed",
        "PosEmbed": "pos_embed",
        "LayerNorm": "layer_norm",
        "Attention": "attention",
        "MLP": "mlp",
        "TransformerBlock": "block",
        "Unembed": "unembed",
    }
    assert {name: guess_kind(name) for name in ours} == ours
    assert guess_kind("CausalSelfAttention") == "attention"
    assert guess_kind("Feed_Forward") == "mlp"
    assert guess_kind("Thing") is None


ATTENTION = """
from torch import nn
class Attention(nn.Module):
    pass
"""


@pytest.mark.parametrize(
    ("where", "source", "message"),
    [
        ("gone.py:Attention", None, "there is no file"),
        ("own.py:Attenton", ATTENTION, "did you mean 'Attention'"),
        ("own.py:nn", ATTENTION, "has no class 'nn'"),
        ("own.py:Config", "class Config: pass", "no torch.nn.Module"),
        ("own.py:Thing", ATTENTION.replace("Attention", "Thing"), "give --kind"),
        ("own.py", ATTENTION + ATTENTION.replace("Attention", "Attention2"), "say which"),
        ("own.py", "x = 1", "defines no torch.nn.Module"),
    ],
)
def test_bad_use_is_told(tmp_path: Path, where: str, source: str | None, message: str) -> None:
    """No such file or class, no module, several candidates: an error that says what to give."""
    if source is not None:
        (tmp_path / "own.py").write_text(source)
    with pytest.raises(PvmlError, match=message):
        find_class(str(tmp_path / where))


def test_one_candidate_needs_no_name(tmp_path: Path) -> None:
    """The only module whose name tells a kind is taken; what is imported is no candidate."""
    file = tmp_path / "own.py"
    file.write_text(ATTENTION + "\nfrom torch.nn import LayerNorm\nclass Helper(nn.Module): pass\n")
    own = find_class(str(file))
    assert (own.cls.__name__, own.kind) == ("Attention", "attention")
    assert find_class(f"{file}:Helper", "mlp").kind == "mlp"
    with pytest.raises(PvmlError, match="no kind 'mpl'"):
        find_class(f"{file}:Helper", "mpl")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\nx = = 2\n", "own.py, line 2: SyntaxError"),
        ("x = 1\n\nimport nowhere_to_be_found\n", "own.py, line 3: ModuleNotFoundError"),
        ("exit(3)\n", "own.py, line 1: SystemExit"),
        ("def f():\n    return 1 / 0\n\nf()\n", "own.py, line 2: ZeroDivisionError"),
        ("a\0b", "own.py"),
    ],
)
def test_what_the_file_raises_is_told(tmp_path: Path, source: str, told: str) -> None:
    """A file that cannot be executed is the reader's to mend: its line is named."""
    (tmp_path / "own.py").write_text(source)
    with pytest.raises(OwnError) as raised:
        find_class(f"{tmp_path / 'own.py'}:Attention")
    assert told in str(raised.value)


def test_a_file_may_import_its_neighbour_and_is_read_anew(
    tmp_path: Path, checked: Any, attention: str
) -> None:
    """What lies beside the file can be imported, and a changed file is not the old one."""
    (tmp_path / "own_neighbour_of_test.py").write_text("FACTOR = 1\n")
    with_import = "from own_neighbour_of_test import FACTOR\n" + attention
    assert checked(with_import).ok
    assert not checked(with_import.replace("return out", "return out+1")).ok
    assert not list(tmp_path.glob("__pycache__/own.*"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PosEmbed", "pos_embed"),
        ("PositionalEmbedding", "pos_embed"),
        ("Unembed", "unembed"),
        ("My_Embed", "embed"),
        ("LayerNorm", "layer_norm"),
        ("NormedAttention", "attention"),
        ("PosMLP", "mlp"),
        ("MultiHeadEmbedMLP", "mlp"),
        ("PostTransformerBlock", "block"),
        ("Thing", None),
    ],
)
def test_the_last_word_of_a_name_tells_the_kind(name: str, kind: str | None) -> None:
    """By hand; an embedding's is told by what stands before it."""
    assert guess_kind(name) == kind
