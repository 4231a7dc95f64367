"""Results on disk, tables made of them, and the plot."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench_entries import entry, missing, results

from convgen.bench import machine, plot
from convgen.bench.report import Standing, circumstances, families, losses_first, markdown, outcome, progress_line
from convgen.bench.results import Entry, Results, load, merge, same_measurement, save
from convgen.errors import OutputError, UsageError

DESIGNED = {
    "id", "family", "problem", "dtype", "direction", "layout", "accuracy", "strategy", "config", "ours_us", "spread",
    "prepare_us", "peers", "floor_us", "verified",
}  # fmt: skip


def plain(found: Results) -> Any:
    return json.loads(json.dumps(found.as_json()))


# --- the file ----------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    before = results(entry("a", 1.5), missing("b"))
    save(tmp_path / "r.json", before)
    assert plain(load(tmp_path / "r.json")) == plain(before)
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_the_file_has_the_agreed_keys_and_one_line_an_entry(tmp_path: Path) -> None:
    save(tmp_path / "r.json", results(entry("a", 1.5), entry("b", 0.5)))
    text = (tmp_path / "r.json").read_text()
    data = json.loads(text)
    assert set(data) == {"meta", "entries"}
    assert set(data["entries"][0]) >= DESIGNED
    assert {"gpu", "driver", "cuda", "cudnn", "torch", "convgen", "commit", "date", "protocol", "clocks"} <= set(
        data["meta"]
    )
    assert len([line for line in text.splitlines() if line.startswith('{"id"')]) == 2


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    save(path, results(entry("a", 1.5)))
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON"):
        save(path, results(entry("a", float("nan"))))
    assert path.read_text() == before
    with pytest.raises(OutputError, match="cannot be written"):
        save(tmp_path / "r.json" / "x.json", results())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "JSON"),
        ("[]", "meta and entries"),
        ('{"meta": {}}', "meta and entries"),
        ('{"meta": {}, "entries": [3]}', "object"),
        ('{"meta": {}, "entries": [{"id": "a"}]}', "family"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match=named):
        load(tmp_path / "r.json")


def test_keys_of_a_newer_release_are_passed_over() -> None:
    values = {**json.loads(json.dumps(results(entry("a", 1.5)).as_json()))["entries"][0], "colour": "red"}
    assert Entry.from_json(values).id == "a"


# --- merging -------------------------------------------------------------------------------------------------


def test_shards_are_joined_and_later_ones_replace() -> None:
    first = results(entry("a", 1.5), entry("b", 0.5), date="2026-11-30", clocks={"sm_mhz": [1, 2]}, suite="hand")
    second = results(entry("b", 0.7), entry("c", 2.0), date="2026-12-01", clocks=None, suite="hand")
    joined = merge([("1.json", first), ("2.json", second)])
    assert [(e.id, e.ratio) for e in joined.entries] == [("a", 1.5), ("b", 0.7), ("c", 2.0)]
    assert joined.meta["gpu"] == "NVIDIA H200"
    assert joined.meta["date"] == "2026-12-01"
    assert joined.meta["clocks"] == [{"sm_mhz": [1, 2]}, None]


def test_what_was_measured_elsewhere_is_not_joined() -> None:
    with pytest.raises(UsageError, match=r"1\.json and 2\.json .*driver 580\.1 and 590"):
        merge([("1.json", results()), ("2.json", results(driver="590"))])
    assert same_measurement({"gpu": "a"}, {"gpu": "a", "date": "b"}) == ""


def test_entries_differ_by_dtype_direction_and_layout() -> None:
    four = [
        entry("a", 1.0),
        entry("a", 1.0, dtype="fp16"),
        entry("a", 1.0, direction="dgrad"),
        entry("a", 1.0, layout="nhwc"),
    ]
    assert len(merge([("x", results(*four))]).entries) == 4


# --- tables --------------------------------------------------------------------------------------------------


def test_a_family_is_the_geometric_mean_of_its_problems() -> None:
    found = {s.name: s for s in families([entry("a", 2.0), entry("b", 0.5), entry("c", 4.0, family="vgg")])}
    assert found["resnet50"].ratio == pytest.approx(1.0)
    assert found["vgg"].ratio == pytest.approx(4.0)
    assert found["all"].ratio == pytest.approx(4.0 ** (1 / 3))
    assert found["all"].default_ratio == pytest.approx((4.0 ** (1 / 3)) / 2)
    assert found["all"].peer_attained == pytest.approx(0.2 / 4.0 ** (1 / 3))
    assert [s.name for s in families([entry("c", 4.0, family="vgg"), entry("a", 2.0)])] == ["resnet50", "vgg", "all"]


def test_a_ratio_whose_interval_encloses_1_is_a_tie() -> None:
    assert [outcome(entry("a", ratio)) for ratio in (0.9, 0.99, 1.01, 1.1, None)] == ["loss", "tie", "tie", "win", ""]
    standing = Standing.of("all", [entry("a", 0.9), entry("b", 1.01), entry("c", 3.0), entry("d", None)])
    assert (standing.losses, standing.ties, standing.wins, standing.problems) == (1, 1, 1, 4)


def test_losses_come_first() -> None:
    found = losses_first([entry("win", 3.0), entry("none", None), entry("loss", 0.2), entry("tie", 1.0)])
    assert [e.id for e in found] == ["loss", "tie", "win", "none"]


def test_without_peers_there_is_still_the_fraction_of_the_floor() -> None:
    standing = Standing.of("all", [entry("a", None), entry("b", None, attained=0.8)])
    assert standing.ratio is None
    assert standing.attained == pytest.approx(0.4)


def test_what_is_attained_is_of_the_problems_that_have_a_peer() -> None:
    """Beside the peer's, an average over others too would compare unlike things."""
    both = [entry("a", 2.0, attained=0.2), entry("b", None, attained=0.8)]
    assert Standing.of("all", both).attained == pytest.approx(0.2)
    assert "geometric means over the problems that have a peer" in markdown(results(*both))


def test_the_markdown_shows_losses_first_flags_and_what_is_missing() -> None:
    flagged = entry("flagged", 0.4, out_of_bound=["cudnn_nchw"])
    text = markdown(results(entry("winner", 3.0), flagged, missing("absent"), entry("a|b", 1.2, frozen_us=8.0)))
    lines = text.splitlines()
    assert "NVIDIA H200" in text
    assert "cuDNN 9.19.0" in text
    rows = [line for line in lines if line.startswith(("| winner", "| flagged", "| a\\|b"))]
    assert [row.split(" | ")[0] for row in rows] == ["| flagged", "| a\\|b", "| winner"]
    assert "0.40 [0.39, 0.41]" in rows[0]
    assert "cudnn_nchw (out of bound)" in rows[0]
    assert "| 10.00 | 20.00 | 8.00 |" in rows[1]
    assert any("absent" in line and "int8" in line for line in lines)
    widths = {line.count(" | ") for line in lines if (line.startswith("| ") and "winner" in line) or line in rows}
    assert len(widths) == 1


def test_a_progress_line_names_problem_times_and_ratio() -> None:
    assert progress_line(entry("a", 1.5)) == "a fp32 fprop nchw: ours 10.00 µs, cudnn_nchw 15.00 µs, 1.50 [1.47, 1.53]x"
    assert progress_line(missing("b", "too large")) == "b fp32 fprop nchw: too large"


def test_circumstances_pass_over_what_is_not_known() -> None:
    assert circumstances({"gpu": "A", "driver": None, "convgen": "0.1"}) == "A, convgen 0.1"


# --- the plot ------------------------------------------------------------------------------------------------


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = [entry("a", 1.5), entry("b", 0.5, dtype="fp16", family="vgg"), entry("c", None, dtype="bf16"), missing("d")]
    plot.draw(results(*shown), tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_the_plot_puts_points_where_the_numbers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    plot._roofline(axes, "fp32", [entry("a", 2.0)], results().meta)
    points = {c.get_label(): tuple(map(float, c.get_offsets()[0])) for c in axes.collections}
    intensity = 231_211_008 / 1_753_088
    assert points["ours"] == pytest.approx((intensity, 231_211_008 / 10e-6 / 1e12))
    assert points["best peer"] == pytest.approx((intensity, 231_211_008 / 20e-6 / 1e12))
    roof = axes.lines[0]
    assert max(roof.get_ydata()) == pytest.approx(50.2)
    pyplot.close(figure)


def test_nothing_measured_cannot_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="nothing was measured"):
        plot.draw(results(missing("a")), tmp_path / "r.png")


def test_without_matplotlib_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"convgen\[bench\]"):
        plot.draw(results(entry("a", 1.0)), tmp_path / "r.png")


# --- where it ran --------------------------------------------------------------------------------------------


def test_the_commit_is_that_of_the_checkout_which_tracks_the_code(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    code, other = tmp_path / "code.py", tmp_path / "installed.py"
    code.write_text("1\n")
    other.write_text("1\n")
    assert machine.commit(code) is None
    git("init")
    git("add", "code.py")
    git("commit", "-m", "one")
    clean = machine.commit(code)
    assert clean is not None
    assert len(clean) == 12
    assert machine.commit(other) is None
    code.write_text("2\n")
    assert machine.commit(code) == f"{clean}-dirty"
