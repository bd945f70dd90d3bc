"""``offsupport serve`` as a command: what it says before it serves."""

import json
import logging
import sys

import pytest
import torch

from offsupport.cli import main, serve


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve.warnings, "showwarning", serve.warnings.showwarning)  # put back afterwards
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers])

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["offsupport", "serve", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code, *capsys.readouterr()

    return call


def test_without_the_extra_the_line_that_installs_it_is_said(command, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())
    code, _, said = command("--model", "digits-small")
    assert code == 2
    assert "needs uvicorn" in said
    assert "pip install 'offsupport[serve]'" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "zoo:cifar10-resnet18x0.25-supervised", "--token", "short"], "at least 16 ASCII letters"),
        (["--model", "zoo:cifar10-resnet18x0.25-supervised", "--method", "tnet"], "tent"),
        (["--model", "zoo:cifar10-resnet18x0.25-supervised", "--hyper", "seed=3"], "--seed"),
        (["--model", "evil:function", "--size", "8"], "--allow-code"),
        (["--model", "zoo:cifar10-resnet18x0.25-supervised", "--untrusted", "--method", "tent"], "no bound"),
        (["--model", "file:model.pth"], "--size N"),
        (["--model", "nothing"], "Unknown model 'nothing'"),
    ],
)
def test_mistakes_are_sentences(command, words, said):
    code, _, heard = command(*words)
    assert code == 2
    assert said in heard
    assert "Traceback" not in heard


def test_it_serves_what_was_asked_for_and_says_where(command, monkeypatch):
    seen = {}

    def run(service, *, host, port, token, ready):
        seen.update(service=service, host=host, port=port, token=token)
        ready("http://127.0.0.1:5")
        assert len(service.predict(torch.rand(2, 3, 32, 32), stream="a")) == 2
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.\x1b[2J")

    monkeypatch.setattr("offsupport.serving.web.run", run)
    monkeypatch.setenv("OFFSUPPORT_TOKEN", "x" * 20)
    words = ("--model", "zoo:cifar10-resnet18x0.25-supervised", "--state", "kept", "--queue", 9, "--json", "--port", 5)
    words += ("--size", 32, "--resize", 40)
    code, out, heard = command(*words, "--no-monitor")
    assert code == 0
    about = json.loads(out)
    assert about["url"] == "http://127.0.0.1:5"
    assert about["classes"] == 10
    assert (seen["host"], seen["port"], seen["token"]) == ("127.0.0.1", 5, "x" * 20)
    service = seen["service"]
    assert service.limits.queue == 9
    assert "No clean images were given" in heard
    assert (service.size, service.resize) == (32, 40)
    assert service.names[3] == "cat"
    assert service.stopping
    events = [json.loads(line)["event"] for line in heard.splitlines() if line.startswith("{")]
    assert events == ["taken up", "stream", "serving", "stream", "warning", "stopped"]
    assert r"uvicorn.error: Invalid HTTP request received.\u001b[2J" in heard
    assert "\x1b" not in heard
    assert "x" * 20 not in heard
    code, out, _ = command(*words, "--no-monitor")
    assert json.loads(out)["streams"] == ["default", "a"]
