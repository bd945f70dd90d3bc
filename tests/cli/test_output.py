"""Tables on a terminal: wide ones come in parts, and no number is broken; answers for scripts come at once."""

import subprocess
import sys
import textwrap
import threading

import pytest

from offsupport.cli.output import emit_in_parts

METHODS = ["source", "bn", "tent", "tesla-s+sc", "ttac (score_stats=running)", "sar"]
ROWS = [[f"cifar10-c/{name}", *(f"{10 * i + k}.{k}" for k in range(6))] for i, name in enumerate(["fog", "frost"], 1)]


@pytest.mark.parametrize(("width", "parts"), [(200, 1), (80, 2), (40, 4)])
def test_wide_tables_come_in_parts(width, parts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    emit_in_parts("errors", ["", *METHODS], ROWS)
    printed = capsys.readouterr().out
    assert printed.count("cifar10-c/frost") == parts
    assert printed.count("errors") == 1
    for value in [value for row in ROWS for value in row[1:]]:
        assert printed.count(value) == 1
    if width > 40:
        assert all(method in printed for method in METHODS)
    assert all(len(line) <= width for line in printed.splitlines())


def test_an_answer_is_there_before_the_verb_ends():
    """A script that starts a service reads its address, and the service goes on."""
    program = """
        from offsupport.cli.output import answers_alone, emit_json
        with answers_alone():
            print("a model that talks")
            emit_json({"url": "here"})
            input()
    """
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], text=True, **pipes) as process:
        patience = threading.Timer(60, process.kill)
        patience.start()
        read = "".join(process.stdout.readline() for _ in range(3))
        patience.cancel()
        assert read == '{\n "url": "here"\n}\n'
        out, errors = process.communicate("\n")
        assert (out, errors, process.returncode) == ("", "a model that talks\n", 0)
