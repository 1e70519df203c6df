"""The demo's training: the model, as many steps as there is time for, a run directory."""

from pathlib import Path

from rich.console import Console

from pvml.config import Config
from pvml.demos.args import DemoArgs
from pvml.demos.prediction import say
from pvml.demos.preparing import Material, pace, training_args, using_threads
from pvml.device import pick_device
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.training.args import TrainingArgs
from pvml.training.first_weights import first_model
from pvml.training.progress import worse_than_guessing
from pvml.training.trainer import Trainer

MADE_BY = "pvml demo"
"""Stands in the run's config: only a run that says so is replaced."""


def learn(
    console: Console, args: DemoArgs, material: Material, path: Path
) -> tuple[RunDir, Transformer]:
    """The finished run at `path`, which replaces what was there, and its model."""
    model = _fresh_model(args, material)
    recipe, threads = _recipe(console, args, material, model)
    run_dir = _new_run(args, material, model, recipe, path)
    trainer = Trainer(
        model,
        material.tokenizer,
        material.rows,
        material.held_out,
        recipe,
        run_dir,
        console=console,
    )
    count = f"{threads} thread{'s' if threads > 1 else ''}"
    say(
        console,
        f"{model.parameter_counts()['total']:,} parameters, {trainer.n_steps:,} steps of "
        f"{recipe.batch_size} rows on {model.device}, {count}",
    )
    with using_threads(threads):
        summary = trainer.train()
    first = next(run_dir.rows("loss"))["loss"]
    say(
        console,
        f"loss {first:.2f} -> {summary['final_held_out_loss']:.2f} nats per token (held out), "
        f"{summary['bits_per_byte']:.3f} bits per byte on held-out text, "
        f"{summary['seconds']:.0f} s",
    )
    warning = worse_than_guessing(summary["final_held_out_loss"], model.cfg.d_vocab)
    if warning:
        say(console, warning)
    return run_dir, model.eval()


def _fresh_model(args: DemoArgs, material: Material) -> Transformer:
    cfg = Config(
        d_model=args.d_model,
        n_heads=args.n_heads,
        n_layers=2,
        n_ctx=material.rows.n_ctx,
        d_vocab=material.tokenizer.d_vocab,
        attn_only=True,
        positions=args.positions,
        init_range=args.init_range,
    )
    recipe = training_args(args, material.rows, args.steps)
    return first_model(cfg, recipe).to(pick_device(args.device))


def _recipe(
    console: Console, args: DemoArgs, material: Material, model: Transformer
) -> tuple[TrainingArgs, int]:
    """The recipe for the steps asked for, or for fewer on a slow machine; threads to take them."""
    recipe = training_args(args, material.rows, args.steps)
    machine = pace(model, material.rows, recipe, args.train_seconds, material.n_held_out_tokens)
    if machine.steps < args.steps:
        recipe = training_args(args, material.rows, machine.steps)
        say(
            console,
            f"this machine takes about {machine.steps:,} steps in {args.train_seconds:.0f} s: "
            f"so many, not {args.steps:,}",
        )
    return recipe, machine.threads


def _new_run(
    args: DemoArgs, material: Material, model: Transformer, recipe: TrainingArgs, path: Path
) -> RunDir:
    return RunDir.create(
        path,
        cfg=model.cfg,
        tokenizer=material.tokenizer,
        args=recipe.to_dict(),
        data={
            "made_by": MADE_BY,
            "source": args.data,
            "limit": args.limit,
            "fingerprint": material.corpus.fingerprint,
            "train_documents": len(material.train),
            "held_out_documents": len(material.held_out),
        },
        overwrite=True,
    )
