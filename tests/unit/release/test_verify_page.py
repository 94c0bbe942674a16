"""The page that checks certificates: its verdicts are the program's, under Node and in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.reference.release_certificates import (
    KEY,
    TAMPERINGS,
    UNKNOWN,
    bomb,
    charged_bundle,
    endless_ledger,
    follows_once,
    honest_release,
    noisy,
    random_composition,
    stating,
    tampered,
)
from tests.reference.verify_page import PAGE, encoded, told_by_the_page

from dpinfer import verify_release
from dpinfer.accounting import Composed, account
from dpinfer.release.files import release_bytes
from dpinfer.verify_release import canonical, verify

VECTORS = Path(__file__).parents[2] / "golden" / "certificates"
PUBLIC = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"


def vectors():
    """Return the arguments of `verify` for each test vector of the specification."""
    release, ledger = (VECTORS / "honest.release").read_bytes(), (VECTORS / "honest.ledger").read_bytes()
    for path in sorted(VECTORS.glob("*.json")):
        if path.stem != "events":
            yield path.read_bytes(), release, ledger, PUBLIC if path.stem == "somebody-else" else None


def others(folder):
    """Return the same for certificates of the library's own, one tampering in six, and what is malformed."""
    bundle = charged_bundle(folder)
    for name in list(TAMPERINGS)[::6]:
        yield tampered(bundle, name).arguments()
    rng = np.random.default_rng(3)
    for number in range(5):
        release = honest_release(rng, number)
        yield release.certificate(key=KEY).encode(), release_bytes(release), None, PUBLIC
    text, ledger = canonical(bundle.document), bundle.ledger.read_bytes()
    yield b"{", None, None, None
    yield text, b"PK", ledger[:600], None
    yield text, bundle.release[:-30] + bytes(30), bytes(5000), "00"
    yield text, bomb(), endless_ledger(), None
    yield text, None, None, None
    yield stating(UNKNOWN["nearly no noise"], 0.1).arguments()
    yield stating([noisy(2.0, 1.0)], 2.25).arguments()
    yield stating([noisy(2.0, 0.1, 7)], 1.0789).arguments()


def test_its_verdicts_are_the_programs(tmp_path, monkeypatch):
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    cases = [*vectors(), *others(tmp_path)]
    claims = []
    for number in range(3):
        item = random_composition(np.random.default_rng([9, number]), number)
        epsilon = account(Composed(tuple(item.events)), delta=item.delta, adjacency=item.relation).epsilon
        events = [event.to_dict() for event in item.events]
        claims += [
            (events, item.relation, share * epsilon, item.delta, finest)
            for share, finest in ((0.99, 1), (1.0 + 1e-9, 8))
        ]
    for vector in json.loads((VECTORS / "events.json").read_bytes()):
        for share in (0.99, 1.01):
            claims.append((vector["events"], vector["adjacency"], share * vector["epsilon"], vector["delta"], 1))
    verdicts, proven = told_by_the_page(cases, claims)
    monkeypatch.setattr(verify_release, "follows", follows_once)
    assert verdicts == [verify(*case)._asdict() for case in cases]
    # As test_certificate.py shows of the program.
    assert proven == [False, True] * (len(claims) // 2)


def test_nothing_of_it_comes_from_elsewhere_or_goes_there():
    text = PAGE.read_text(encoding="utf-8")
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'" in text
    assert (
        re.findall(r"https?://|\bsrc=|\bhref=|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon", text) == []
    )


def test_a_person_sees_the_verdict_in_a_browser(tmp_path):
    """Chromium opens the page from a file, and three files are chosen in it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("Chromium is not installed")
    names = ("honest.json", "honest.release", "honest.ledger")
    content = json.dumps({name: encoded((VECTORS / name).read_bytes()) for name in names})
    chooses = f"""<script>
    const chosen = new DataTransfer();
    for (const [name, text] of Object.entries({content}))
      chosen.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name));
    document.querySelector("input[type=file]").files = chosen.files;
    document.querySelector("input[type=file]").dispatchEvent(new Event("change"));
    // The browser's clock runs ahead of the threads that read files and hash: each of its steps gets some work.
    let work = 0;
    const wait = setInterval(() => {{
      if (document.querySelector("#verdict")) clearInterval(wait);
      for (let k = 0; k < 1e7; k++) work = Math.imul(work + k, 3);
    }}, 100);
    </script></body>"""
    copy = tmp_path / "page.html"
    copy.write_text(PAGE.read_text(encoding="utf-8").replace("</body>", chooses), encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=100000",
    ]
    done = subprocess.run([browser, *options, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=200)
    shown = re.sub(r"<[^>]*>", "\n", re.search(r"<main.*</main>", done.stdout, re.DOTALL)[0])
    for lines in verify(*((VECTORS / name).read_bytes() for name in names))[:3]:
        assert [line for line in lines if line not in shown.replace("&amp;", "&")] == []
    assert "No guarantee is promised" in shown
