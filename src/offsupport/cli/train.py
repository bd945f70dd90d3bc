"""``offsupport train``: a source model from a recipe; the same command again goes on where it stopped."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import typer

from offsupport.cli.output import JSON, emit_json, say


def train(
    recipe: str = typer.Argument(help="Name of a recipe (`offsupport list recipes`), or a YAML file."),
    data: Path = typer.Option(None, help="Folder of the data; digits need none."),
    out: Path = typer.Option(None, help="Folder of the run.", show_default="runs/train/RECIPE"),
    seed: int = typer.Option(0, help="Seed of initialisation, order and views."),
    threads: int = typer.Option(1, min=1, help="Threads; the last bits of the weights depend on them."),
    device: str = typer.Option("cpu", help="cpu or cuda; under torchrun every process takes a GPU of its own."),
    json: bool = JSON,
) -> None:
    """Train a source model, or go on where the run in the folder stands; works under torchrun."""
    import torch

    from offsupport.core.progress import progress
    from offsupport.training import read_recipe
    from offsupport.training.run import default_folder
    from offsupport.training.run import train as run
    from offsupport.training.team import gather_team

    settings = read_recipe(recipe)
    folder = out if out is not None else default_folder(recipe)
    torch.set_num_threads(threads)
    # Under torchrun this file runs once per GPU; only the leader shows progress, draws and prints.
    with gather_team(device) as team, contextlib.ExitStack() as shown:
        torch.set_flush_denormal(True)  # weights that decay to nearly nothing make CPUs crawl
        shown.callback(torch.set_flush_denormal, False)
        advance = shown.enter_context(progress(f"Training {folder.name}", settings.epochs)) if team.leads else _silent
        card = run(recipe, data, folder, seed, team, advance)
    if not team.leads:
        return
    draw_curves(card, folder)
    if json:
        emit_json(card)
        return
    if card["test"] is not None:
        low, high = (f"{100 * bound:.2f}" for bound in card["test"]["ci95"])
        say(f"Clean accuracy {100 * card['test']['accuracy']:.2f} % ({low}-{high}) after {card['epochs']} epochs.")
    say(f"Weights, card and curves: {folder}")


def _silent(units: int = 1, note: str = "") -> None:
    """Only one process of several speaks."""


def draw_curves(card: dict[str, Any], folder: Path) -> None:
    """Write the learning curves of a finished run as ``curves.svg``."""
    from offsupport.core.files import write_text
    from offsupport.report import figures
    from offsupport.training.run import CURVES

    wrong = {"training views": [100 * (1 - line["train_accuracy"]) for line in card["log"]]}
    if "held_out_accuracy" in card["log"][-1]:
        wrong["held-out images"] = [100 * (1 - line["held_out_accuracy"]) for line in card["log"]]
    write_text(folder / CURVES, figures.traces(wrong, "error (%)", "epochs"))
