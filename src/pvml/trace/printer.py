"""A listener that prints each named tensor as it passes: `[attn]   q: (1, 7, 12, 64)  # ...`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from pvml.config import Config
from pvml.trace.points import PARAMETERS
from pvml.trace.tap import Listener, Names, Place, attach, attached, matching

_TAG, _LABEL, _SHAPE = 12, 20, 15


def line(tag: str, label: str, shape: str, note: str, tag_width: int, label_width: int) -> str:
    """One line of a trace: tag, name, shape and meaning, in the columns that all lines share."""
    left = f"{f'[{tag}]':<{tag_width}}{label:>{label_width}}: "
    return f"{left}{shape:<{_SHAPE}} # {note}" if note else f"{left}{shape}"


@contextmanager
def printing(
    root: nn.Module,
    names: Names = "*",
    *,
    weights: bool | None = None,
    out: Callable[[str], object] = print,
) -> Iterator[None]:
    """Within it, every tensor under `root` that `names` picks prints its line as it passes.

    `weights`: show the parameters behind each tensor too (default: only for a module on its own).
    `out` takes each line.

    Raises: PvmlError for names that pick nothing.
    """
    picked = matching(root, names)
    with attached(picked, _printer(root, picked, weights, out)):
        yield


def print_if_asked(root: nn.Module, cfg: Config) -> None:
    """With `Config(debug=True)`, every pass of `root` prints its trace for as long as it lives."""
    if cfg.debug:
        picked = matching(root, "*")
        attach(picked, _printer(root, picked, None, print))


def _printer(
    root: nn.Module, picked: list[Place], weights: bool | None, out: Callable[[str], object]
) -> Listener:
    by_name = {place.name: place for place in picked}
    tag_width = max(_TAG, *(len(_tag(name)) + 3 for name in by_name))
    label_width = {tag: _LABEL for tag in map(_tag, by_name)}
    for name, place in by_name.items():
        label_width[_tag(name)] = max(label_width[_tag(name)], len(place.point.name))
    shapes = _parameter_shapes(root)
    show_weights = weights if weights is not None else not any(root.children())

    def show(name: str, x: Tensor) -> None:
        place, tag = by_name[name], _tag(name)
        columns = tag_width, label_width[tag]
        for label in place.point.shows if show_weights else ():
            shape = shapes[id(place.tap)][label.split(", ")[0]]
            out(line(tag, label, shape, PARAMETERS[place.tap.kind][label][1], *columns))
        point = place.point
        out(line(tag, point.label or point.name, str(tuple(x.shape)), point.note, *columns))

    return Listener(show)


def _tag(name: str) -> str:
    return name.rpartition(".")[0]


def _parameter_shapes(root: nn.Module) -> dict[int, dict[str, str]]:
    return {
        id(module.tap): {
            name: str(tuple(p.shape)) for name, p in module.named_parameters(recurse=False)
        }
        for module in root.modules()
        if hasattr(module, "tap")
    }
