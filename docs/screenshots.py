"""Takes the pictures of docs/images: sections of reports, as Chromium draws them.

    python docs/screenshots.py PAGE.html [FOLDER]

PAGE.html is what `sscc report` wrote of the README's small.rdu with --ir-dir and --bench. Needs playwright (the extra
`test`) and Debian's chromium.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

WIDTH, HEIGHT = 1180, 900
PICTURES = (
    ("overview-light", "light", WIDTH, "#overview", 720),
    ("kernels-dark", "dark", WIDTH, "#kernels details.kernel[open] .scroll", None),
    ("roofline-dark", "dark", WIDTH, "#roofline", None),
    ("timeline-light", "light", WIDTH, "#timeline", None),
)
"""Name, colours, width of the window, what is shown, and how much of its height at most."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes the pictures of docs/images.")
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "images")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no chromium on the PATH")
    from playwright.sync_api import sync_playwright

    args.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--disable-gpu"], chromium_sandbox=False)
        for name, scheme, width, selector, most in PICTURES:
            page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
            page.goto(args.page.resolve().as_uri())
            page.add_style_tag(content=".top, nav { position: static !important }")
            box = page.locator(selector).first.bounding_box()
            assert box is not None, selector
            clip = {**box, "height": min(box["height"], most or box["height"])}
            path = args.folder / f"report-{name}.png"
            page.screenshot(path=path, clip=clip, full_page=True)
            print(f"{path}: {path.stat().st_size} bytes")
            page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
