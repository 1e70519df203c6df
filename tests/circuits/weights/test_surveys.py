"""Surveys: what is kept is the dense circuits', a stopped one goes on, another model is refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pvml.circuits.weights.maps import ov, qk
from pvml.circuits.weights.surveys import Survey, digest, survey
from pvml.errors import PvmlError, RunDirError
from pvml.runs import weights


def test_it_keeps_what_the_circuits_hold(make_model: Any, tmp_path: Path) -> None:
    """Every head's OV and QK: largest entries, diagonal, ranks; read again from the folder."""
    model = make_model()
    told: list[tuple[str, int, int]] = []
    survey(model, tmp_path / "s", top=4, tell=lambda *words: told.append(words))
    found = Survey.open(tmp_path / "s")

    assert found.names == [
        f"{kind} {i}.{j}" for kind in ("OV", "QK") for i in (0, 1) for j in range(3)
    ]
    assert not found.missing and told[-1] == ("QK 1.2", 29, 29)
    for scanned in found:
        kind, _, place = scanned.name.partition(" ")
        layer, head = map(int, place.split("."))
        circuit = ov(model, (layer, head)) if kind == "OV" else qk(model, (layer, head))
        dense = circuit.map.dense()
        best = dense.sort(dim=1, descending=True)
        close: dict[str, Any] = {"rtol": 0, "atol": 1e-12}
        t.testing.assert_close(scanned.row_values, best.values[:, :4], **close)
        assert t.equal(scanned.row_ids, best.indices[:, :4])
        t.testing.assert_close(scanned.values, dense.flatten().topk(4).values, **close)
        t.testing.assert_close(dense[scanned.rows, scanned.columns], scanned.values, **close)
        t.testing.assert_close(scanned.diagonal, dense.diagonal(), **close)
        assert t.equal(scanned.ranks, (dense > dense.diagonal()[:, None]).sum(1))
        assert scanned.favours_itself == pytest.approx(float((scanned.ranks == 0).double().mean()))


def test_a_stopped_survey_goes_on(make_model: Any, tmp_path: Path) -> None:
    """What was kept is not scanned again; what was cut short is."""
    model = make_model()

    def stop(name: str, done: int, of: int) -> None:
        if name == "OV 1.1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey(model, tmp_path / "s", tell=stop)
    half = Survey.open(tmp_path / "s")
    assert len(half.missing) == 8 and half.missing[0] == "OV 1.1"
    with pytest.raises(PvmlError, match="OV 1.1 is not scanned yet: give the same call again"):
        half["OV 1.1"]
    told: list[str] = []
    found = survey(model, tmp_path / "s", tell=lambda name, *_: told.append(name))
    assert told == half.names[4:] and not found.missing


def test_only_some_now(make_model: Any, tmp_path: Path) -> None:
    """A pattern leaves the others for later; one that nothing fits makes no folder."""
    model = make_model()
    with pytest.raises(PvmlError, match=r"no circuit fits 'OV 7\.\*': they are OV 0.0, "):
        survey(model, tmp_path / "s", only="OV 7.*")
    assert not (tmp_path / "s").exists()
    found = survey(model, tmp_path / "s", only="OV 1.*")

    assert found.matching("OV 1.*") == ["OV 1.0", "OV 1.1", "OV 1.2"]
    assert len(found.names) == 12 and len(found.missing) == 9 and found["OV 1.2"].name == "OV 1.2"
    assert not survey(model, tmp_path / "s").missing


def test_what_is_refused(make_model: Any, tmp_path: Path) -> None:
    """Another model's folder, a folder of something else, a damaged file, nothing to do."""
    model, path = make_model(), tmp_path / "s"
    found = survey(model, path, kinds=("OV",))
    with pytest.raises(PvmlError, match=r"holds another survey \(its top differ\)"):
        survey(model, path, kinds=("OV",), top=3)
    model.embed.W_E.data[0, 0] += 1
    with pytest.raises(PvmlError, match=r"holds another survey \(its weights differ\)"):
        survey(model, path, kinds=("OV",))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(PvmlError, match="is there and is no survey: take a new folder"):
        survey(model, tmp_path / "other")
    with pytest.raises(PvmlError, match="nothing to survey"):
        survey(make_model(n_layers=0), tmp_path / "none")
    with pytest.raises(PvmlError, match="top must be at least 1 entry, got 0"):
        survey(model, tmp_path / "none", top=0)
    with pytest.raises(PvmlError, match="there is no 'OV 9.9' in .*: it has OV 0.0, "):
        found["OV 9.9"]
    (path / "OV-0.1.safetensors").write_bytes(b"cut")
    with pytest.raises(PvmlError, match="OV-0.1.safetensors is damaged: .*Remove it"):
        found["OV 0.1"]
    with pytest.raises(PvmlError, match="missing, damaged or cut short"):
        Survey.open(tmp_path / "nowhere")


def test_changed_numbers_are_told(make_model: Any, tmp_path: Path) -> None:
    """A file whose tensors are others than were kept is damaged, whatever it says it is of."""
    found = survey(make_model(), tmp_path / "s", kinds=("OV",))
    file = tmp_path / "s" / "OV-0.1.safetensors"
    with safe_open(file, "pt") as saved:
        says = saved.metadata()
        kept = {key: saved.get_tensor(key) for key in saved.keys()}  # noqa: SIM118
    kept["values"][0] += 1
    save_file(kept, file, says)
    with pytest.raises(PvmlError, match="its numbers are not those that were kept"):
        found["OV 0.1"]


def test_a_digest_tells_weights_apart(make_model: Any) -> None:
    """Equal for equal weights, another for one number changed."""
    one, two = make_model(), make_model()
    two.load_state_dict(one.state_dict())
    assert digest(one.state_dict()) == digest(two.state_dict())
    two.unembed.W_U.data[3, 4] += 1e-9
    assert digest(one.state_dict()) != digest(two.state_dict())


def test_a_file_of_another_circuit_is_refused(make_model: Any, tmp_path: Path) -> None:
    """Moved from another head, from another model's survey, or no survey's file at all."""
    model, other = make_model(), make_model()
    other.embed.W_E.data *= 2
    one, two = survey(model, tmp_path / "one", top=3), survey(other, tmp_path / "two", top=3)
    names = ("OV-0.0", "OV-0.1", "OV-0.2", "OV-1.0")
    first, second, third, fourth = (one.path / f"{name}.safetensors" for name in names)
    shutil.copy(one.path / "OV-1.1.safetensors", first)
    shutil.copy(two.path / "OV-0.1.safetensors", second)
    save_file({"x": t.zeros(2)}, third)
    save_file({"x": t.zeros(2)}, fourth, {"circuit": "OV 1.0", "survey": "0"})

    with pytest.raises(PvmlError, match=r"OV-0.0.safetensors holds OV 1.1 of this survey, not OV"):
        one["OV 0.0"]
    with pytest.raises(PvmlError, match="holds OV 0.1 of another survey, not OV 0.1 of this"):
        one["OV 0.1"]
    for name in ("OV 0.2", "OV 1.0"):
        with pytest.raises(PvmlError, match="is damaged: it is no file of a survey"):
            one[name]
    first.unlink()
    again = survey(model, one.path, top=3, only="OV 0.0")
    assert again["OV 0.0"].name == "OV 0.0"


def test_a_disk_that_refuses_is_named(
    make_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the folder's place, a folder that cannot be, and a disk that fills up."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "s"):
        with pytest.raises(RunDirError, match="cannot be made a folder"):
            survey(make_model(), path)

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(RunDirError, match=r"OV-0.0.safetensors could not be written \(.*No space"):
        survey(make_model(), tmp_path / "s")
    assert [entry.name for entry in (tmp_path / "s").iterdir()] == ["survey.json"]
