"""Saved results of benchmarks: what is written is read again, with the machine it was measured on."""

import pytest

from annotated_transformer.data import results


def test_rows_come_back_with_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    rows = [{"length": 64, "milliseconds": 1.5}]
    path = results.save_results("example", rows, tmp_path)
    saved = results.load_results("example")
    assert path == tmp_path / "example.json" and saved["rows"] == rows
    assert {"processor", "cores", "threads", "torch", "python", "date"} == set(saved["machine"])


def test_an_unknown_name_lists_the_known_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"name \('speed'\) must be a saved benchmark.*: none"):
        results.load_results("speed")
    results.save_results("example", [], tmp_path)
    with pytest.raises(FileNotFoundError, match="not among: example"):
        results.load_results("speed")


@pytest.mark.parametrize("path", sorted(results.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_say_where_they_come_from(path):
    saved = results.load_results(path.stem)
    assert saved["rows"] and saved["machine"]["torch"] and saved["machine"]["date"]


def test_a_machine_without_proc_is_described_too(monkeypatch):
    monkeypatch.setattr(results.Path, "read_text", lambda self: (_ for _ in ()).throw(OSError))
    assert isinstance(results._processor(), str)
