"""Takes the pictures of the report that the docs show: ``python docs/images/make.py RUN_DIR [RUN_DIR ...]``.

Each run gets its report written, and a picture at 1280 pixels, one at 390 in the dark, and one of the open drawer.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent.parent / "tests" / "report"))
SHOTS = {"wide": (1280, 2200, False), "phone-dark": (390, 1700, True)}


def main(folders: list[str]) -> None:
    """Write the pictures of each run."""
    from browser import chromium, show

    from offsupport.report.run_page import write_report

    with chromium() as driver:
        for folder in map(Path, folders):
            page, _ = write_report(folder)
            for name, (width, height, dark) in SHOTS.items():
                show(driver, page, width, height, dark)
                keep(driver, f"report-{folder.name}-{name}.png")
            show(driver, page, 1280, 900)
            driver.execute_script("document.querySelector('.number').click()")
            keep(driver, f"report-{folder.name}-drawer.png")


def keep(driver: Any, name: str) -> None:
    """Write what is on the screen in 256 colours, which is a third of the bytes."""
    from PIL import Image

    from offsupport.core.files import write_bytes

    buffer = BytesIO()
    seen = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    seen.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    write_bytes(HERE / name, buffer.getvalue())


if __name__ == "__main__":
    main(sys.argv[1:])
