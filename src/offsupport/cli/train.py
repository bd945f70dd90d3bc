"""``offsupport train``: a source model from a recipe; the same command again goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import typer

from offsupport.cli.output import JSON, emit_json, say


def train(
    recipe: str = typer.Argument(help="Name of a recipe (`offsupport list recipes`), or a YAML file."),
    data: Path = typer.Option(None, help="Folder of the data; digits need none."),
    out: Path = typer.Option(None, help="Folder of the run [default: runs/train/RECIPE]."),
    seed: int = typer.Option(0, help="Seed of initialisation, order and views."),
    threads: int = typer.Option(1, min=1, help="Threads; the last bits of the weights depend on them."),
    json: bool = JSON,
) -> None:
    """Train a source model, or go on where the run in the folder stands."""
    import torch

    from offsupport.core.progress import progress
    from offsupport.training import read_recipe
    from offsupport.training.run import train as run

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # weights that decay to nearly nothing make CPUs crawl
    settings = read_recipe(recipe)
    folder = out if out is not None else Path("runs/train") / Path(recipe).stem
    with progress(f"Training {Path(recipe).stem}", settings.epochs) as advance:
        card = run(recipe, data, folder, seed, advance)
    if json:
        emit_json(card)
    else:
        low, high = card["test"]["ci95"]
        say(f"Clean accuracy {100 * card['test']['accuracy']:.2f} % ({100 * low:.2f}-{100 * high:.2f}), {card['epochs']} epochs")
        say(f"Weights and card: {folder}")
