"""The command line as a whole: help without torch, wrong folders, Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from offsupport.cli import main
from offsupport.cli.output import emit_json

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX: sends a signal to one process alone")


@pytest.fixture
def offsupport(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["offsupport", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    "words",
    [
        ("demo", "--out", "FILE"),
        ("data", "make", "digits-c", "--out", "FILE"),
        ("bench", "run", "--methods", "bn", "--out", "FILE/inside"),
        ("reproduce", "table2", "--out", "FILE"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_before_any_work(words, offsupport, tmp_path, monkeypatch):
    (tmp_path / "FILE").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    code, said = offsupport(*words)
    assert code == 2
    assert "Nothing can be written to FILE" in said
    assert "Traceback" not in said
    assert "1 of 3" not in said


def test_missing_clean_data_names_the_clean_data(offsupport, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFSUPPORT_DATA", "")
    code, said = offsupport("data", "make", "cifar10-c", "--out", tmp_path)
    assert code == 3
    assert "cifar-10-batches-py" in said


@posix
def test_ctrl_c_says_so(tmp_path):
    words = [sys.executable, "-m", "offsupport", "demo", "--out", str(tmp_path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(timeout=600) == 130
    assert "1 of 3" in line
    assert "interrupted" in rest
    assert "Traceback" not in rest


@posix
def test_ctrl_c_while_a_string_is_executed_ends_with_130_too(tmp_path):
    (tmp_path / "verb.py").write_text(
        "import os, signal\n"
        "from offsupport.cli import main\n"
        "main.app = lambda: exec('os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass')\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "verb"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(130)])
def test_an_interrupt_is_said_and_ends_with_130_wherever_it_falls(end, monkeypatch, capsys):
    def interrupted():
        raise end

    monkeypatch.setattr(main, "app", interrupted)
    with pytest.raises(SystemExit) as found:
        main.main()
    assert found.value.code == 130
    assert "interrupted" in capsys.readouterr().err


def test_other_exits_keep_their_code_and_say_nothing(monkeypatch, capsys):
    def ended():
        raise SystemExit(4)

    monkeypatch.setattr(main, "app", ended)
    with pytest.raises(SystemExit) as found:
        main.main()
    assert found.value.code == 4
    assert not capsys.readouterr().err


def test_a_verb_runs_in_a_thread_which_may_not_handle_signals(monkeypatch):
    ended = []

    def call():
        try:
            main.main()
        except BaseException as error:
            ended.append(error)

    monkeypatch.setattr(main, "app", lambda: ended.append("ran"))
    # As in a fresh process: other tests leave a handler of their own.
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert ended == ["ran"]


def test_a_name_that_the_terminal_cannot_encode_is_printed_in_another_way(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(main, "app", lambda: sys.stdout.write("caf\udce9 \u4e2d"))
    main.main()
    assert terminal.buffer.getvalue() == b"caf\\udce9 \\u4e2d"


LOUD = """
import os, sys
from offsupport.cli import main
from offsupport.cli.output import emit_json
from offsupport.cli.output import emit_json

def verb():
    print("the model")
    os.system("echo a worker")
    emit_json({"answer": 1})
    print("the model again")

main.app = verb
main.main()
print("afterwards")
"""


@pytest.mark.parametrize(("words", "out"), [(["--json"], '{\n "answer": 1\n}\nafterwards\n'), ([], None)])
def test_with_json_nothing_else_stands_on_standard_output(words, out, tmp_path):
    """Models print, and so do processes and libraries below Python."""
    script = tmp_path / "verb.py"
    script.write_text(LOUD)
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if out is None:
        assert "the model" in done.stdout
    else:
        assert done.stdout == out
        assert " ".join(done.stderr.split()) == "the model a worker the model again"


def test_answers_reach_who_took_the_place_of_standard_output(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["offsupport", "list", "methods", "--json"])
    monkeypatch.setattr(main, "app", lambda: (print("the model"), emit_json([1])))
    main.main()
    assert tuple(capsys.readouterr()) == ("[\n 1\n]\n", "the model\n")
    print("afterwards")
    assert capsys.readouterr().out == "afterwards\n"
