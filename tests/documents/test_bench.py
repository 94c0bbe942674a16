"""``python -m bench``: it knows the benchmarks of bench/README.md, and fails when one of them does."""

import functools
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_list_is_that_of_the_table() -> None:
    listed = {line.split()[0] for line in bench().stdout.splitlines()}
    table = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    assert listed == set(re.findall(r"^\| `\w+/(\w+)\.py`", table, re.MULTILINE))


def test_what_ran_is_tabulated_and_a_wrong_answer_fails(tmp_path: Path) -> None:
    folder = tmp_path / "bench" / "coverage"
    folder.mkdir(parents=True)
    main = (ROOT / "bench" / "__main__.py").read_text(encoding="utf-8")
    (folder.parent / "__main__.py").write_text(main, encoding="utf-8")
    main = 'if __name__ == "__main__":\n    '
    (folder / "right.py").write_text(f'"""A right one."""\nimport sys\n{main}print("ratio 2.0", sys.argv[1:])\n')
    (folder / "wrong.py").write_text(f'"""A wrong one."""\n{main}assert 1 == 2\n')
    (folder / "shared.py").write_text('"""No benchmark."""\n')
    assert bench(cwd=tmp_path).stdout.splitlines() == ["right  A right one.", "wrong  A wrong one."]
    done = bench("right", "--arguments", "--runs 3", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0
    assert "| right --runs 3 | right |" in done.stdout
    (result,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert result["output"] == ["ratio 2.0 ['--runs', '3']"]
    more = bench("right", "--json", "out.json", "--page", "page.md", cwd=tmp_path)
    assert more.returncode == 0
    kept = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert [item["arguments"] for item in kept] == [[], ["--runs", "3"]]
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## right\n\nA right one.\n\n`python bench/coverage/right.py --runs 3`" in written
    assert "```text\nratio 2.0 ['--runs', '3']\n```" in written
    failed = bench("right", "wrong", cwd=tmp_path)
    assert failed.returncode == 1
    assert "| wrong | FAILED |" in failed.stdout
    assert bench("gone", cwd=tmp_path).returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="a script stands for the environment's Python")
def test_a_benchmark_runs_in_the_environment_of_its_peers(tmp_path: Path) -> None:
    folder, python = tmp_path / "bench" / "peers", tmp_path / "peers" / "clusters" / "bin" / "python"
    for path in (folder, python.parent):
        path.mkdir(parents=True)
    for name in ("__main__.py", "peers/peer_environments.py"):
        (folder.parent / name).write_text((ROOT / "bench" / name).read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "shards.py").write_text('"""It."""\nif __name__ == "__main__":\n    print("here")\n')
    python.write_text("#!/bin/sh\necho there, with $DPINFER_PEERS\n")
    python.chmod(0o755)
    run = functools.partial(bench, "shards", "--peers", "peers", "--json", "out.json", cwd=tmp_path)
    assert "\nhere\n" in run().stdout
    (tmp_path / "peers" / "clusters" / "built").touch()
    assert f"\nthere, with {tmp_path / 'peers'}\n" in run().stdout
    (result,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert result["peers"][0].startswith("distributed==")


def test_the_page_of_results_is_that_of_their_file(tmp_path: Path) -> None:
    kept = (ROOT / "bench" / "results.json").read_text(encoding="utf-8")
    assert all(result["status"] == 0 for result in json.loads(kept)["results"])
    (tmp_path / "results.json").write_text(kept, encoding="utf-8")
    made = bench("--json", str(tmp_path / "results.json"), "--page", str(tmp_path / "page.md"))
    assert made.returncode == 0
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page


def test_every_target_of_the_fuzzer_has_a_share() -> None:
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "bench" / "privacy" / "fuzz.py")
    fuzz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzz)
    assert set(fuzz.SHARES) == set(fuzz.targets())
