"""The pictures of docs/screens.md: README, demo report, front page of the docs and live page, on a desk and on a phone.

    make docs && offsupport demo
    python benchmarks/screens.py [--demo runs/demo/report.html] [--site site] [--json]

Opens each page in headless Chromium (`make browser`) at 1280 and 390 pixels, in the light and in the dark, and writes
docs/pictures/screen-NAME-desktop.png and -phone.png. The live page is that of a service that is sent clean digits first
and digits in fog then.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

import offsupport
from offsupport.core.files import write_bytes
from offsupport.serving import Service
from offsupport.serving.web import make_app

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
sys.path += [str(ROOT / "tests" / folder) for folder in ("report", "serving")]
SIZES = {"desktop": (1280, 860, False), "phone": (390, 844, True)}
"""Width, height and whether in the dark, by what stands behind the name of the picture."""
LOOK = """<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><style>
body { max-width: 54rem; margin: 1.5rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif; }
img { max-width: 100%; } p > img:not([src$=svg]) { background: #fff; }
pre { padding: .8rem; background: #8881; white-space: pre-wrap; overflow-wrap: anywhere; } code { font-size: .88em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #8884; padding: .3rem .7rem; }
</style>"""
"""About what a page that shows READMEs makes of them."""


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=ROOT / "runs" / "demo" / "report.html")
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    parser.add_argument("--json", action="store_true", help="print the sizes of the pictures as JSON")
    arguments = parser.parse_args()
    from browser import chromium

    with chromium() as driver, tempfile.TemporaryDirectory() as folder:
        pages = {"readme": readme(Path(folder)), "demo": arguments.demo, "front": arguments.site / "index.html"}
        written = {}
        for name, page in pages.items():
            written |= taken(driver, name, lambda page=page: driver.get(page.resolve().as_uri()))
        with watched() as url:
            written |= taken(driver, "live", lambda: driver.get(url))
    print(json.dumps(written, indent=None if arguments.json else 1))


def taken(driver: Any, name: str, show: Callable[[], None]) -> dict[str, int]:
    """Take a page at both sizes and return the bytes of the pictures."""
    from PIL import Image

    written = {}
    for place, (width, height, dark) in SIZES.items():
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        show()
        time.sleep(3)  # pages draw when they are loaded, the live one every second
        seen = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        buffer = BytesIO()
        seen.save(buffer, "PNG", optimize=True)  # in all its colours: a palette stains photographs
        file = PICTURES / f"screen-{name}-{place}.png"
        write_bytes(file, buffer.getvalue())
        written[file.name] = len(buffer.getvalue())
    return written


def readme(folder: Path) -> Path:
    """Return the README as a page."""
    import markdown

    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("docs/pictures/", f"{PICTURES.as_uri()}/")
    lines = [line for line in text.splitlines() if "img.shields.io" not in line]  # nothing is fetched
    body = markdown.markdown("\n".join(lines), extensions=["tables", "fenced_code"])
    page = folder / "readme.html"
    page.write_text(LOOK + body, encoding="utf-8")
    return page


@contextmanager
def watched() -> Iterator[str]:
    """Serve the digits network, with a stream behind it that was clean and then in fog; yield where."""
    from service_client import listening

    model, data = offsupport.load_model("zoo:digits-small"), offsupport.data.load("digits", split="test")
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
    known, shown = rows[:300], rows[300:]
    labels = torch.from_numpy(data.labels[known])
    stats = offsupport.source_stats(model, data.tensor(known).split(64), "auto", labels=labels)
    adapted = offsupport.adapt(model, source=stats)
    opened = Service(adapted, size=32, names=list("0123456789"), model="zoo:digits-small")
    with opened as service, listening(make_app(service)) as url:
        for corruption in (None, "fog"):
            pixels = data.images(shown)
            pixels = pixels if corruption is None else offsupport.data.corrupt(pixels, corruption, severity=4)
            x = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 255
            for batch in x.split(32):
                service.predict(batch)
                time.sleep(1.1)  # a point of the curves each second
        yield url


if __name__ == "__main__":
    main()
