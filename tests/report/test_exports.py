import csv
import io
import re
from dataclasses import replace

import pytest

from offsupport.core.escaping import escape
from offsupport.report.page import Badge, Bar, Number, Table
from offsupport.report.tables import FIELDS, as_csv, as_latex, latex_text
from offsupport.results import Row

ROW = Row(method="bn", column="c/avg", metric="error", unit="percent", value=8.25, low=-7.5, high=9.0, n=1200)


def test_csv_holds_every_number_in_full():
    read = list(csv.DictReader(io.StringIO(as_csv([ROW, replace(ROW, paper=14.1, deviation=0.5)]))))
    assert tuple(read[0]) == FIELDS
    assert [float(read[0][name]) for name in ("value", "low", "high")] == [8.25, -7.5, 9.0]
    assert (read[0]["paper"], read[0]["deviation"], read[1]["paper"], read[1]["deviation"]) == ("", "", "14.1", "0.5")


@pytest.mark.parametrize("name", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", " =1"])
def test_names_that_look_like_formulas_are_defused_and_numbers_are_not(name):
    (read,) = csv.DictReader(io.StringIO(as_csv([replace(ROW, method=name)])))
    assert read["method"] == "'" + escape(name)
    assert read["low"] == "-7.5"


def test_csv_quotes_what_would_break_a_line():
    evil = 'a,"b"\nc'
    (read,) = csv.DictReader(io.StringIO(as_csv([replace(ROW, method=evil)])))
    assert read["method"] == escape(evil) == r'a,"b"\nc'


def test_latex_is_a_table_of_what_the_page_shows():
    rows = [
        ["a_b", Number("8.1", 8.1, printed="7.9"), Badge("holds", "good"), Bar(0, 1, 2)],
        ["c", Number("-0.5 (-1.0 to 0.0)"), "50 %", Bar(0, 1, 2)],
    ]
    text = as_latex([Table(["method", "error", "verdict", ""], rows, "100 % real")], "A\ntitle")
    assert text.splitlines() == [
        "% A title",
        r"% needs \usepackage{booktabs,textcomp}",
        "",
        r"% 100 \% real",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & error & verdict \\",
        r"\midrule",
        r"a\_b & 8.1 {\footnotesize(7.9)} & holds \\",
        r"c & $-$0.5 ($-$1.0 to 0.0) & 50 \% \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_no_sign_of_a_name_is_a_command():
    evil = "\\input{/etc/passwd} % $x^2$ & #1 _ ~ {a} [b] * a--b\n\\end{document} ^^5c"
    text = latex_text(evil)
    assert "\n" not in text
    assert "--" not in text
    # What is left when every escape we write is taken out has none of LaTeX's special signs.
    known = r"\\text(backslash|asciitilde|asciicircum)\{\}|\\[&%$#_{}]|-\{\}|\{[*\[]\}"
    assert not re.search(r"[\\{}$&#^_~%]", re.sub(known, "", text))
