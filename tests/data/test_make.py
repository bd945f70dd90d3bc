import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import numpy as np
import pytest
from data_layouts import write_cifar10, write_cifar100, write_imagenet100

from offsupport.core.errors import ConfigError, FileError, OffsupportError
from offsupport.core.files import folder_lock
from offsupport.data import load
from offsupport.data.folders import IMAGENET100
from offsupport.data.making import make
from offsupport.data.pictures import read_picture

posix = pytest.mark.skipif(sys.platform == "win32", reason="counts on groups of processes")


@pytest.fixture
def in_process(monkeypatch):
    """Work is done by a thread: starting processes is tested once, below, and takes seconds."""

    @contextlib.contextmanager
    def pool(workers):
        with ThreadPoolExecutor(workers) as threads:
            yield threads

    monkeypatch.setattr("offsupport.data.making.worker_pool", pool)


def tree(folder):
    """Every file and its hash; the lock aside."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_two_workers_write_what_is_generated_on_the_fly(tmp_path):
    manifest = make("digits-c", None, tmp_path, corruptions=["gaussian_noise", "contrast"], workers=2)
    folder = tmp_path / "DIGITS-C"
    assert sorted(tree(folder)) == ["contrast.npy", "gaussian_noise.npy", "labels.npy", "manifest.json"]
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    assert manifest["recipe"]["frost"] == "synthetic"
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"]
    for severity in (1, 5):
        stored = load("digits-c", tmp_path, corruption="gaussian_noise", severity=severity)
        made = load("digits-c", corruption="gaussian_noise", severity=severity)
        assert (stored.source, made.source) == ("files", "generated")
        assert np.array_equal(stored.images(range(599)), made.images(range(599)))
        assert np.array_equal(stored.labels, made.labels)


@pytest.mark.usefixtures("in_process")
def test_rerun_keeps_adds_and_repairs(tmp_path):
    write_cifar10(tmp_path)
    make("cifar10-c", tmp_path, tmp_path, corruptions=["contrast"])
    file = tmp_path / "CIFAR-10-C" / "contrast.npy"
    assert np.load(file).shape == (100, 32, 32, 3)
    first, stamp = file.read_bytes(), file.stat().st_mtime_ns
    manifest = make("cifar10-c", tmp_path, tmp_path, corruptions=["contrast", "brightness"])
    assert file.stat().st_mtime_ns == stamp
    assert sorted(manifest["files"]) == ["brightness.npy", "contrast.npy", "labels.npy"]
    file.write_bytes(first[:-1] + b"x")
    make("cifar10-c", tmp_path, tmp_path, corruptions=["contrast"])
    assert file.read_bytes() == first
    assert not (tmp_path / "CIFAR-10-C" / ".parts").exists()


@pytest.mark.usefixtures("in_process")
def test_the_seed_and_the_data_decide_about_the_bytes(tmp_path):
    write_cifar100(tmp_path)
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        make("cifar100-c", tmp_path, tmp_path / out, corruptions=["shot_noise"], seed=seed, workers=1)
    a, b, c = (tree(tmp_path / out) for out in "abc")
    assert a == b
    assert a["CIFAR-100-C/shot_noise.npy"] != c["CIFAR-100-C/shot_noise.npy"]
    with pytest.raises(FileError, match=r"begun with other settings \(seed\)"):
        make("cifar100-c", tmp_path, tmp_path / "a", corruptions=["shot_noise"], seed=1)
    manifest = tmp_path / "a" / "CIFAR-100-C" / "manifest.json"
    older = json.loads(manifest.read_text())
    older["recipe"]["gone"] = 1
    manifest.write_text(json.dumps(older))
    with pytest.raises(FileError, match=r"begun with other settings \(gone\)"):
        make("cifar100-c", tmp_path, tmp_path / "a", corruptions=["shot_noise"])


@pytest.mark.usefixtures("in_process")
def test_foreign_and_busy_folders_are_left_alone(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "CIFAR-10-C").mkdir()
    (tmp_path / "CIFAR-10-C" / "fog.npy").write_bytes(b"official")
    with pytest.raises(FileError, match="did not write"):
        make("cifar10-c", tmp_path, tmp_path, corruptions=["fog"])
    assert (tmp_path / "CIFAR-10-C" / "fog.npy").read_bytes() == b"official"
    with folder_lock(tmp_path / "out" / "CIFAR-10-C"), pytest.raises(FileError, match="Another process"):
        make("cifar10-c", tmp_path, tmp_path / "out", corruptions=["fog"])


def test_a_worker_that_dies_is_a_sentence(tmp_path, monkeypatch):
    class Broken(Future):
        def result(self, timeout=None):
            raise BrokenProcessPool

    @contextlib.contextmanager
    def pool(workers):
        yield SimpleNamespace(submit=lambda *_: Broken())

    monkeypatch.setattr("offsupport.data.making.worker_pool", pool)
    monkeypatch.setattr("offsupport.data.making.as_completed", iter)
    with pytest.raises(OffsupportError, match=r"worker process died.*same command again"):
        make("digits-c", None, tmp_path, corruptions=["fog"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "cifar10"}, "Did you mean 'cifar10-c'"),
        ({"corruptions": ["fgo"]}, "Did you mean 'fog'"),
        ({"workers": 0}, "workers is 0"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        make(**{"name": "digits-c", "data": None, "out": tmp_path, **options})
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("in_process")
def test_imagenet_tree_and_a_bad_picture(tmp_path, monkeypatch):
    wnids = IMAGENET100[:6]
    monkeypatch.setattr("offsupport.data.folders.IMAGENET100", wnids)
    write_imagenet100(tmp_path)
    bad = tmp_path / "val" / wnids[4] / "ILSVRC2012_val_00000004.JPEG"
    bad.write_bytes(b"not a picture")
    job = {"name": "imagenet100-c", "data": tmp_path, "corruptions": ["contrast"], "workers": 1}
    with pytest.raises(FileError, match=r"ILSVRC2012_val_00000004\.JPEG cannot be read"):
        make(out=tmp_path / "strict", **job)
    assert not (tmp_path / "strict" / "ImageNet100-C" / "contrast").exists()

    manifest = make(out=tmp_path, skip_bad=True, **job)
    assert manifest["skipped"] == [f"{wnids[4]}/ILSVRC2012_val_00000004.JPEG"]
    folder = tmp_path / "ImageNet100-C"
    assert len(list(folder.glob("contrast/*/*/*.JPEG"))) == 5 * 5
    stored = load("imagenet100-c", tmp_path, corruption="contrast", severity=3)
    made = load("imagenet100-c", tmp_path, corruption="contrast", severity=3, source="generated")
    assert stored.labels.tolist() == [0, 1, 2, 3, 5]
    assert np.array_equal(stored.images([4]), made.images([5]))
    assert len((folder / "checksums" / "contrast-3.sha256").read_text().splitlines()) == 5

    broken = folder / "contrast" / "3" / wnids[2] / "ILSVRC2012_val_00000002.JPEG"
    good = read_picture(broken)
    broken.write_bytes(broken.read_bytes()[:200])
    assert make(out=tmp_path, skip_bad=True, **job) == manifest
    assert np.array_equal(read_picture(broken), good)


def start(out, data):
    command = [sys.executable, "-m", "offsupport", "data", "make", "imagenet100-c", "--data", str(data)]
    command += ["--out", str(out), "--corruptions", "contrast", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def finished_units(out):
    return len(list(out.glob("ImageNet100-C/.parts/*/*/"))) + len(list(out.glob("ImageNet100-C/*/*/*/")))


@pytest.mark.fault
@posix
def test_killed_and_rerun_gives_the_same_bytes(tmp_path):
    write_imagenet100(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, tmp_path).wait() == 0
    done = 0
    for _ in range(2):
        process = start(killed, tmp_path)
        while process.poll() is None and finished_units(killed) < done + 120:
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert not (killed / "ImageNet100-C" / "manifest.json").exists()
        assert finished_units(killed) >= done + 120  # what was done is kept
        done = finished_units(killed)
    assert start(killed, tmp_path).wait() == 0
    assert tree(killed) == tree(whole)


def ends(group):
    """Whether the workers that a killed process leaves behind end by themselves."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.fault
@posix
def test_killed_npy_job_resumes_to_the_same_bytes(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    names = "glass_blur,spatter,jpeg_compression"
    base = [sys.executable, "-m", "offsupport", "data", "make", "digits-c", "--corruptions", names, "--out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*base, str(whole)], env=environment, check=True)
    kills = 0
    for wanted in (2, 7):
        process = subprocess.Popen([*base, str(killed)], env=environment, start_new_session=True)
        parts = killed / "DIGITS-C"
        while process.poll() is None and len([*parts.glob(".parts/*.pixels"), *parts.glob("*_*.npy")]) < wanted:
            time.sleep(0.005)
        if process.poll() is None:
            kills += 1
            process.kill()
        process.wait()
        assert ends(process.pid)
    assert kills
    subprocess.run([*base, str(killed)], env=environment, check=True)
    assert tree(killed) == tree(whole)
