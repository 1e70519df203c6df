"""The README.md of an exported folder, which the hub shows as the model's card."""

from collections.abc import Iterator, Mapping

from pvml.export.about import About
from pvml.export.certificate import Certificate
from pvml.export.form import Form
from pvml.loading import Loaded
from pvml.runs.weights import parameter_totals


def model_card(
    loaded: Loaded, form: Form, certificate: Certificate, folder: str, about: About
) -> str:
    """The card as Markdown: sizes, how to open it, training, grades, processing, certificate.

    folder: what the exported folder is called.
    """
    return "\n".join(_lines(loaded, form, certificate, folder, about)) + "\n"


def _lines(
    loaded: Loaded, form: Form, certificate: Certificate, folder: str, about: About
) -> Iterator[str]:
    cfg, totals = loaded.model.cfg, parameter_totals(loaded.model)
    processing = getattr(loaded.model, "processing", ())
    yield from ("---", f"library_name: {form.tag}", "pipeline_tag: text-generation", "tags:")
    yield from ("- gpt2", "- pvml", "---", "", f"# {_plain(folder)}", "")
    yield (
        f"A GPT-2-shaped transformer of {totals['total']:,} parameters, {_plain(loaded.name)}, "
        f"written by PvML {certificate.pvml} for {form.title}."
    )
    yield from ("", *_table({name: str(value) for name, value in cfg.to_dict().items()}))
    yield from ("", "## Open it", "")
    if about.repo:
        yield f"`hf download {about.repo} --local-dir {_plain(folder)}` fetches the folder. Then:"
        yield ""
    yield "```python"
    yield from form.opening.replace("FOLDER", _plain(folder)).splitlines()
    yield "```"
    if about.run is not None:
        yield ""
        yield (
            "Every row it was trained on began with the token `<|endoftext|>`: put it in front of "
            "a prompt."
        )
    if about.trained:
        yield from ("", "## How it was trained", "", *_table(about.trained))
    if about.command:
        yield from ("", "```console", f"$ {_plain(about.command)}", "```")
    if about.grades:
        yield from ("", "## How well it predicts", "", *_table(about.grades))
    yield from ("", "## Weight processing", "")
    yield (
        f"Applied before the export: {', '.join(processing)}."
        if processing
        else "None: the weights are as they were trained or loaded."
    )
    yield from ("", "## Certificate", "", "```text", *certificate.text().splitlines(), "```")
    yield from ("", "All of it, with the tokens that were compared, is in `certificate.json`.")
    yield from ("", f"## What is not the same in {form.title}", "")
    yield from (f"- {note}" for note in form.notes)


def _table(facts: Mapping[str, str]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for name, value in facts.items():
        yield f"| {_cell(name)} | {_cell(value)} |"


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("<", "&lt;")


def _plain(text: str) -> str:
    """A name or path on one line, that closes no block of code."""
    return " ".join(text.split()).replace("`", "'")
