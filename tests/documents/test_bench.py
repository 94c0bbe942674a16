"""``python -m bench``: it knows the benchmarks of bench/README.md, and fails when one of them does."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def bench(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_list_is_that_of_the_table() -> None:
    listed = {line.split()[0] for line in bench().stdout.splitlines()}
    table = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    assert listed == set(re.findall(r"^\| `(\w+)\.py`", table, re.MULTILINE))


def test_what_ran_is_tabulated_and_a_wrong_answer_fails(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "__main__.py").write_text((ROOT / "bench" / "__main__.py").read_text(encoding="utf-8"), encoding="utf-8")
    main = 'if __name__ == "__main__":\n    '
    (folder / "right.py").write_text(f'"""A right one."""\nimport sys\n{main}print("ratio 2.0", sys.argv[1:])\n')
    (folder / "wrong.py").write_text(f'"""A wrong one."""\n{main}assert 1 == 2\n')
    (folder / "shared.py").write_text('"""No benchmark."""\n')
    assert bench(cwd=tmp_path).stdout.splitlines() == ["right  A right one.", "wrong  A wrong one."]
    done = bench("right", "--arguments", "--runs 3", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0
    assert "| right | right |" in done.stdout
    (result,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert result["output"] == ["ratio 2.0 ['--runs', '3']"]
    failed = bench("right", "wrong", cwd=tmp_path)
    assert failed.returncode == 1
    assert "| wrong | FAILED |" in failed.stdout
    assert bench("gone", cwd=tmp_path).returncode == 2


def test_every_target_of_the_fuzzer_has_a_share() -> None:
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "bench" / "fuzz.py")
    fuzz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzz)
    assert set(fuzz.SHARES) == set(fuzz.targets())
