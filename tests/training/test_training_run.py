import json
import os
import subprocess
import sys
import time

import pytest
import torch
from training_recipes import written
from typer.testing import CliRunner

import offsupport
from offsupport.cli.main import app
from offsupport.core.errors import ConfigError, DataMissingError, FileError
from offsupport.core.files import folder_lock, sha256_file
from offsupport.nn import WithProjection
from offsupport.training import train
from offsupport.training.loop import Examples, correct
from offsupport.training.team import Team


class Interrupted(Exception):
    """Stands for whatever ends a run early."""


def test_a_run_leaves_log_weights_and_card(tmp_path):
    recipe = written(tmp_path / "mine.yaml", epochs=2)
    card = train(recipe, out=tmp_path / "run", seed=3)
    assert card == json.loads((tmp_path / "run" / "card.json").read_text())
    assert (card["name"], card["seed"], card["epochs"]) == ("mine", 3, 2)
    assert card["file_sha256"] == sha256_file(tmp_path / "run" / "model.safetensors")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert lines == card["log"]
    assert {"epoch", "loss", "lr", "train_accuracy", "held_out_accuracy", "seconds", "side"} == set(lines[0])
    model = offsupport.load_model(f"file:{tmp_path / 'run' / 'model.safetensors'}")
    test = offsupport.data.load("digits")
    right = correct(model, Examples.of(test))
    assert card["test"]["accuracy"] == right / len(test)
    assert card["test"]["ci95"][0] < card["test"]["accuracy"] < card["test"]["ci95"][1]
    assert card["data"]["train_sha256"] == offsupport.data.load("digits", split="train").sha256


def test_an_interrupted_run_goes_on_and_a_finished_one_does_nothing(tmp_path):
    recipe = written(tmp_path / "mine.yaml", epochs=2)
    whole = train(recipe, out=tmp_path / "whole")
    seen = []

    def stop_after_two(units, note=""):
        if seen:
            raise Interrupted
        seen.append(units)

    with pytest.raises(Interrupted):
        train(recipe, out=tmp_path / "broken", advance=stop_after_two)
    assert not (tmp_path / "broken" / "card.json").exists()
    counted = []
    resumed = train(recipe, out=tmp_path / "broken", advance=lambda units, note="": counted.append(units))
    assert sum(counted) == 2
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert [line["loss"] for line in resumed["log"]] == [line["loss"] for line in whole["log"]]
    assert train(recipe, out=tmp_path / "broken")["weights_sha256"] == whole["weights_sha256"]


def test_a_folder_belongs_to_one_run(tmp_path):
    recipe = written(tmp_path / "mine.yaml", epochs=1)
    train(recipe, out=tmp_path / "run")
    with pytest.raises(FileError, match="holds a run with another seed"):
        train(recipe, out=tmp_path / "run", seed=1)
    written(tmp_path / "mine.yaml", epochs=1, lr=0.01)
    with pytest.raises(FileError, match="holds a run with another recipe"):
        train(recipe, out=tmp_path / "run")
    with folder_lock(tmp_path / "run"), pytest.raises(FileError, match="Another process is working"):
        train(recipe, out=tmp_path / "run")


def test_recipes_start_from_the_runs_beside_them(tmp_path):
    first = written(tmp_path / "first.yaml", epochs=1)
    second = written(tmp_path / "second.yaml", epochs=1, objective="joint", start="first", lr=1e-9)
    with pytest.raises(DataMissingError, match="builds on first, which is neither in the zoo nor at"):
        train(second, out=tmp_path / "second")
    train(first, out=tmp_path / "first")
    train(second, out=tmp_path / "second")
    one, two = (offsupport.load_model(f"file:{tmp_path / name / 'model.safetensors'}") for name in ("first", "second"))
    assert isinstance(two, WithProjection)
    torch.testing.assert_close(two.backbone.model.fc.weight, one.model.fc.weight)


def test_a_run_stops_when_as_good_as_another(tmp_path):
    first = written(tmp_path / "first.yaml", epochs=1)
    goal = train(first, out=tmp_path / "first")["held_out_accuracy"]
    card = train(written(tmp_path / "second.yaml", epochs=9, stop_at="first"), out=tmp_path / "second")
    scores = [line["held_out_accuracy"] for line in card["log"]]
    assert scores[-1] >= goal > max([*scores[:-1], -1])
    train(written(tmp_path / "moco.yaml", epochs=1, objective="moco"), out=tmp_path / "moco")
    with pytest.raises(ConfigError, match="moco has no held-out accuracy"):
        train(written(tmp_path / "third.yaml", stop_at="moco"), out=tmp_path / "third")


def test_a_result_without_a_classifier_claims_no_accuracy(tmp_path):
    options = "{queue: 64}"
    card = train(written(tmp_path / "m.yaml", epochs=1, objective="moco", options=options), out=tmp_path / "run")
    assert card["test"] is None
    assert card["held_out_accuracy"] is None


def test_senseless_requests_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be shared by 3 processes"):
        train(written(tmp_path / "m.yaml"), out=tmp_path / "run", team=Team(size=3))
    with pytest.raises(ConfigError, match="images are held out"):
        train(written(tmp_path / "m.yaml", held_out=5000), out=tmp_path / "run")
    with pytest.raises(DataMissingError, match="cifar10"):
        train(written(tmp_path / "m.yaml", dataset="cifar10"), tmp_path, tmp_path / "run")


def test_the_command_line_trains_and_draws(tmp_path):
    recipe = written(tmp_path / "mine.yaml", epochs=1)
    threads = torch.get_num_threads()
    result = CliRunner().invoke(app, ["train", recipe, "--out", str(tmp_path / "run"), "--json"])
    torch.set_num_threads(threads)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["name"] == "mine"
    assert (tmp_path / "run" / "curves.svg").read_text().startswith("<svg")
    result = CliRunner().invoke(app, ["list", "recipes", "--json"])
    assert "digits-small" in {row["name"] for row in json.loads(result.stdout)}


def command(*arguments):
    return [sys.executable, "-m", "offsupport", "train", *map(str, arguments)]


@pytest.mark.fault
def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    recipe = written(tmp_path / "mine.yaml", epochs=4, epoch_images=512)
    subprocess.run(command(recipe, "--out", tmp_path / "whole"), check=True, capture_output=True)
    process = subprocess.Popen(command(recipe, "--out", tmp_path / "run"), stderr=subprocess.DEVNULL)
    while not (tmp_path / "run" / "log.jsonl").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "run" / "card.json").exists()
    subprocess.run(command(recipe, "--out", tmp_path / "run"), check=True, capture_output=True)
    cards = [json.loads((tmp_path / name / "card.json").read_text()) for name in ("whole", "run")]
    assert cards[0]["weights_sha256"] == cards[1]["weights_sha256"]


def torchrun(processes, *arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [*launcher, "-m", "offsupport", "train", *map(str, arguments)]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # the launcher repeats at the end what the cause at the start led to


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path):
    """A probe has no batch statistics, so sharing the batch changes nothing but the rounding."""
    recipe = written(tmp_path / "probe.yaml", objective="probe", views="shift")
    torchrun(2, recipe, "--out", tmp_path / "two")
    train(recipe, out=tmp_path / "one")
    one, two = (json.loads((tmp_path / name / "card.json").read_text()) for name in ("one", "two"))
    assert two["processes"] == 2
    assert [line["loss"] for line in two["log"]] == pytest.approx([line["loss"] for line in one["log"]], rel=1e-5)
    weights = [offsupport.load_model(f"file:{tmp_path / name / 'model.safetensors'}") for name in ("one", "two")]
    torch.testing.assert_close(weights[0].model.fc.weight, weights[1].model.fc.weight, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["supervised", "joint", "rotation", "moco"])
def test_two_processes_train_every_objective_and_resume(tmp_path, objective):
    recipe = written(tmp_path / "mine.yaml", objective=objective, epochs=2)
    torchrun(2, recipe, "--out", tmp_path / "run")
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert len(card["log"]) == 2
    torchrun(2, recipe, "--out", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "card.json").read_text())["weights_sha256"] == card["weights_sha256"]
