"""The numbers of docs/monitor.md are those of results/estimate.json."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_stored_results():
    text = (ROOT / "docs" / "monitor.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- estimate streams -->\n(.*?)\n<!-- /estimate streams -->", text, re.DOTALL)[1]
    summary = json.loads((ROOT / "results" / "estimate.json").read_text(encoding="utf-8"))["summary"]
    for line in table.splitlines()[2:]:
        label, streams, source, adapted, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        name = label.replace("random order", "iid").replace("sorted by label", "sorted")
        found = summary[name]
        assert int(streams) == found["streams"]
        assert (source, adapted) == (f"{found['source_error']:.1f}", f"{found['adapted_error']:.1f}")
