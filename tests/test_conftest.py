"""What CI may leave out: GPU tests where there is no GPU, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest_plugins = ["pytester"]
SAMPLE = """
import pytest

@pytest.mark.gpu
def test_on_a_gpu():
    pass

def test_that_needs_more():
    pytest.skip("no such thing here")

@pytest.mark.skipif(True, reason="not today")
def test_of_another_day():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_known_to_fail():
    assert False

def test_that_passes():
    pass
"""


@pytest.fixture
def outcome(pytester, monkeypatch):
    """Runs the sample tests under this project's conftest, in CI or not."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\nmarkers = gpu")
    pytester.makepyfile(SAMPLE)

    def run(ci: str, gpu: bool):
        monkeypatch.setenv("CI", ci)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider")

    return run


def test_gpu_tests_are_deselected_where_there_is_no_gpu(outcome):
    outcome(ci="", gpu=False).assert_outcomes(passed=1, skipped=2, xfailed=1, deselected=1)


def test_gpu_tests_run_where_there_is_one(outcome):
    outcome(ci="", gpu=True).assert_outcomes(passed=2, skipped=2, xfailed=1)


def test_a_skipped_test_fails_in_ci(outcome):
    result = outcome(ci="true", gpu=False)
    result.assert_outcomes(passed=1, failed=1, errors=1, xfailed=1, deselected=1)
    result.stdout.fnmatch_lines(["*skipped in CI, which must run every test: Skipped: no such thing here*"])
