"""The page that checks certificates, run by Node."""

import base64
import json
import subprocess
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "_static" / "verify_release.html"
# Evaluates the page's script, and answers with the verdict of each case, and whether each epsilon follows.
RUN = """
const fs = require("fs"), [page, cases] = process.argv.slice(1);
const script = /<script>([^]*)<\\/script>/.exec(fs.readFileSync(page, "utf8"))[1];
const own = new Function(script + "; return { verify, follows, parse, exact };")();
const [verdicts, claims] = JSON.parse(fs.readFileSync(cases, "utf8"));
const bytes = text => (text === null ? null : new Uint8Array(Buffer.from(text, "base64")));
(async () => {
  const told = [], proven = [];
  for (const [text, release, ledger, key] of verdicts)
    told.push(await own.verify(bytes(text), bytes(release), bytes(ledger), key));
  for (const [events, relation, epsilon, delta, finest] of claims)
    proven.push(own.follows(own.parse(JSON.stringify(events)), relation, own.exact(epsilon), own.exact(delta), finest));
  console.log(JSON.stringify([told, proven]));
})();
"""


def encoded(content):
    """Return bytes as text."""
    return None if content is None else base64.b64encode(content).decode()


def told_by_the_page(cases, claims):
    """Return the page's verdicts of arguments of `verify`, and its answers to arguments of `follows`."""
    listed = [[*map(encoded, case[:3]), case[3]] for case in cases]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps([listed, claims]), encoding="utf-8")
        done = subprocess.run(["node", "-e", RUN, PAGE, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
