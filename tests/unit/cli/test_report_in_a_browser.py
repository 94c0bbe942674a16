"""The report in a real browser, at the widths of a phone, a tablet and a desk: nothing sticks out, text can be read."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.cli.main import main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
WIDTHS = (390, 768, 1280)
# A page around the report that measures it: the report itself may run no script.
FRAME = """<!DOCTYPE html><html><body style="margin:0">
<iframe id="page" src="report.html" style="border:0;width:WIDTHpx;height:900px"></iframe><pre id="found"></pre><script>
document.getElementById("page").onload = (event) => {
  const page = event.target.contentDocument, root = page.documentElement, small = [];
  for (const element of page.querySelectorAll("p, li, td, th, figcaption"))
    if (parseFloat(getComputedStyle(element).fontSize) < 11) small.push(element.textContent);
  const shown = [...page.images].map((image) => [image.alt, image.naturalWidth, image.getBoundingClientRect().width]);
  for (const bars of page.querySelectorAll(".bars"))
    for (const bar of bars.children) {
      const own = bar.getBoundingClientRect(), all = bars.getBoundingClientRect();
      if (own.left < all.left - 6 || own.right > all.right + 6) small.push("a bar sticks out");
    }
  const cut = [...page.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth).length;
  const all = {wide: root.scrollWidth, small: small, images: shown, cut: cut};
  document.getElementById("found").textContent = JSON.stringify(all);
};</script></body></html>"""


OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def browse(*arguments, timeout=60.0):
    """Return what a browser of its own prints: own profile, own process group, and a file for its output.

    Two browsers with one profile wait for one another, and a pipe stays open while any child of a killed one lives.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, tempfile.TemporaryFile() as printed:
        command = [BROWSER, *OPTIONS, f"--user-data-dir={profile}", *arguments]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=quiet, stdout=printed, stderr=quiet, start_new_session=True) as process:
            try:
                status = process.wait(timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert status == 0
        printed.seek(0)
        return printed.read().decode("utf-8")


@pytest.fixture(scope="module", autouse=True)
def works():
    """Skip where the browser is there but cannot show a page: that is not the report's fault."""
    try:
        shown = browse("--dump-dom", "data:text/html,<p>shown</p>", timeout=30.0)
    except (AssertionError, subprocess.TimeoutExpired):
        pytest.skip("Chromium does not start here")
    assert "shown" in shown


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    assert main(["demo", "--out", str(folder)]) == 0
    return folder / "report.html"


def measure(page, width):
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    arguments = ["--allow-file-access-from-files", "--virtual-time-budget=8000", f"--window-size={width + 40},900"]
    found = re.search(r'<pre id="found">(.+?)</pre>', browse(*arguments, "--dump-dom", frame.as_uri()), re.DOTALL)
    assert found, "the page was not measured"
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_fits_the_screen(report, width):
    found = measure(report, width)
    assert found["wide"] <= width
    assert found["small"] == []
    assert len(found["images"]) >= 2
    for name, natural, shown in found["images"]:
        assert shown <= width, name
        # No picture is shrunk until its labels (8 points at 130 dots an inch) are below about 6 points.
        assert shown >= 0.42 * natural, name


def test_the_report_of_a_regression_fits_a_phone_and_a_tablet(tmp_path):
    pytest.importorskip("formulaic", reason="needs the extra dpinfer[formula]")
    schema = dpi.tabular.Schema.from_dict(
        {"columns": {name: {"kind": "continuous", "bounds": [0, 1]} for name in ("a_rather_long_name", "y")}}
    )
    rng = np.random.default_rng(0)
    data = {name: rng.random(5000) for name in ("a_rather_long_name", "y")}
    budget = {"epsilon": 1.0, "delta": 1e-6, "n_records": 5000}
    dpi.regression("y ~ a_rather_long_name", data, schema=schema, **budget).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<polyline" in page
    assert "from 0 to 1" in page
    for width in (390, 768):
        found = measure(tmp_path / "report.html", width)
        assert found["wide"] <= width
        assert found["small"] == []
        assert found["cut"] == 0


def test_a_picture_of_each_width_is_taken(report):
    for width in WIDTHS:
        picture = report.with_name(f"report-{width}.png")
        browse(f"--window-size={width},2400", f"--screenshot={picture}", report.as_uri())
        assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(picture.read_bytes()[16:20], "big") == width
        assert picture.stat().st_size > 20_000


def test_what_sticks_out_is_seen(report):
    text = report.read_text(encoding="utf-8")
    wide = report.with_name("wide") / "report.html"
    wide.parent.mkdir()
    outside = '<p style="width:700px;font-size:9px">too wide</p>'
    wide.write_text(text.replace("<main>", f'<main>{outside}<div class="scroll">{outside}</div>'), encoding="utf-8")
    found = measure(wide, 390)
    assert found["wide"] > 390
    assert found["small"] == ["too wide"] * 2
    assert found["cut"] >= 1
