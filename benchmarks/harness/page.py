"""docs/benchmarks.md from what was measured: tables between the page's marks; the words around them stay."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.cases import CASES, TITLES, Case
from harness.report import Rates, as_markdown, paired_ratio, plot_ratios, rate_table
from muster.report.measured import write_measured

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Others that use more than this share of the processor disturb the measurement.
QUIET = 0.1
STARTUP_SECONDS = 6.0
#: The part of the results with tables that leave other systems out, and are newer than those that have them.
PARTIAL = "speed without peers"
#: Speed against a bare loop that is lower by more than this has fallen.
LOSS = 0.02
SIZES = {"cohort": "clients a round", "clients": "clients in all", "workers": "worker"}


def write_page(measured: Mapping[str, Any]) -> None:
    speed = {name: measured["speed"][name] for name in CASES if name in measured.get("speed", {})}
    sections = [_summary(speed, measured.get(PARTIAL, {})), _change(speed, measured.get(PARTIAL, {}))]
    sections += [_speed(CASES[name], entry, measured) for name, entry in speed.items()]
    sections += [_limits(measured), _profile(measured.get("profile", {})), _startup(measured), _memory(measured)]
    write_measured(DOCS / "benchmarks.md", "\n\n".join(section for section in sections if section))
    ratios = {CASES[name].title: _ratios(entry) for name, entry in speed.items()}
    plot_ratios(ratios, DOCS / "images" / "engine-speed.png")


def _rates(entry: Mapping[str, Any]) -> dict[str, Rates]:
    return {side: Rates(TITLES[side], values) for side, values in entry["values"].items()}


def _ratios(entry: Mapping[str, Any]) -> dict[str, float]:
    rates = _rates(entry)
    return {side.title: paired_ratio(rates["muster"], side) for name, side in rates.items() if name != "muster"}


def _summary(speed: Mapping[str, Any], partial: Mapping[str, Any]) -> str:
    """Each ratio from the newest run that has both of its sides."""
    rows = [["workload", "against", "Muster is … times as fast", "aim", ""]]
    for name, entry in speed.items():
        complete, newest = _rates(entry), _rates(partial.get(name, entry))
        for target in CASES[name].targets:
            rates = newest if target.against in newest else complete
            if target.against in rates:
                ratio = paired_ratio(rates["muster"], rates[target.against])
                reached = "reached" if ratio >= target.at_least else "**not reached**"
                aim = f"≥ {target.at_least:g}"
                rows.append([CASES[name].title, rates[target.against].title, f"{ratio:.2f}", aim, reached])
    return f"## Summary\n\n{as_markdown(rows)}\n\n![Muster's speed against each side](images/engine-speed.png)"


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Speed against the bare loops of the same run, then and now."""
    rows = [["workload", "against", "before", "after", "change", f"fell by at most {100 * LOSS:.0f} %"]]
    for name, entry in before.items():
        then, now = _rates(entry), _rates(after.get(name, {"values": {}}))
        for side in (side for side in ("bare", "plain") if side in then and side in now):
            change = paired_ratio(now["muster"], now[side]) / paired_ratio(then["muster"], then[side]) - 1
            ratios = [_ratio_and_range(rates, side) for rates in (then, now)]
            word = "yes" if change >= -LOSS else "**no**"
            rows.append([CASES[name].title, TITLES[side], *ratios, f"{100 * change:+.1f} %", word])
    if len(rows) == 1:
        return ""
    dates = [
        " and ".join(dict.fromkeys(e["conditions"]["date"] for e in part.values())) for part in (before, after)
    ]
    text = (
        "Muster's rate divided by that of a bare loop in the same repeat: the median over repeats, with "
        f"the smallest and the largest in brackets. Before: {dates[0]}; after: {dates[1]}. "
        "The commands are given with the tables of each workload."
    )
    return f"## Has Muster become slower?\n\n{text}\n\n{as_markdown(rows)}"


def _ratio_and_range(rates: Mapping[str, Rates], side: str) -> str:
    ratios = [a / b for a, b in zip(rates["muster"].values, rates[side].values, strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.2f} – {max(ratios):.2f}; {len(ratios)} repeats)"


def _conditions(entry: Mapping[str, Any]) -> str:
    where = entry["conditions"]
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    others = where.get("others")
    used = "" if others is None else f"; others used {100 * others:.0f} % of the processor when it began"
    busy = " **The machine was busy with other work.**" if others is not None and others > QUIET else ""
    return f"`{where['command']}`, {where['date']}; {where['machine']}; {packages}{used}.{busy}"


def _speed(case: Case, entry: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    sizes, rates = entry["workload"], _rates(entry)
    parts = [
        f"## {case.title}",
        f"{case.description}; {sizes['clients']:,} clients × {sizes['samples']:,} samples, {sizes['cohort']:,} a "
        f"round, batch {sizes['batch']}, one epoch, SGD; {len(rates['muster'].values)} repeats, interleaved."
        + "".join(f" {TITLES[side]} had {count:,} clients in all." for side, count in entry["clients"].items()),
        as_markdown(rate_table(rates)),
        _conditions(entry),
    ]
    name = sizes["network"]
    if name in measured.get(PARTIAL, {}):
        again = measured[PARTIAL][name]
        table = as_markdown(rate_table(_rates(again)))
        parts += [f"Measured again, without other systems:\n\n{table}", _conditions(again)]
    if name in measured.get("scaling", {}):
        parts.append(_scaling(measured["scaling"][name]))
    return "\n\n".join(parts)


def _scaling(entry: Mapping[str, Any]) -> str:
    base = next(row["rate"] for row in entry["values"] if not row["changed"])
    rows = [["with", "samples/s", "of the above sizes' rate"]]
    for row in entry["values"]:
        what = f"{row['to']:,} {SIZES[row['changed']]}" if row["changed"] else "the sizes above"
        rows.append([what, f"{row['rate']:,.0f}", f"{row['rate'] / base:.2f}"])
    return f"How the rate changes with the sizes (one run each):\n\n{as_markdown(rows)}"


def _limits(measured: Mapping[str, Any]) -> str:
    if not {"machine", "operations"} <= measured.get("limits", {}).keys():
        return ""
    machine, operations = (measured["limits"][name] for name in ("machine", "operations"))
    best = max(machine["values"].values())
    rows = [["workload", "MFLOP a sample", "samples/s at that rate", "Muster", "aim against Flower"]]
    for name, count in operations["values"].items():
        if name not in measured.get("speed", {}):
            continue
        rates = _rates(measured["speed"][name])
        aims = [target.at_least for target in CASES[name].targets if target.against == "flower"]
        needed = f"{aims[0] * rates['flower'].median:,.0f}" if aims and "flower" in rates else ""
        ours = rates["muster"].median
        share = f"{ours:,.0f} ({100 * ours * count / best:.0f} %)"
        rows.append([CASES[name].title, f"{count / 1e6:,.2f}", f"{best / count:,.0f}", share, needed])
    found = ", ".join(f"{name} {value / 1e9:,.0f} GFLOP/s" for name, value in machine["values"].items())
    return (
        f"## What the processor allows\n\nAll cores together, one thread each: {found}. At the better of the two "
        f"rates a network could train this many samples a second if nothing else took time:"
        f"\n\n{as_markdown(rows)}\n\n{_conditions(machine)}"
    )


def _profile(profiles: Mapping[str, Any]) -> str:
    if not profiles:
        return ""
    kinds = list(dict.fromkeys(kind for entry in profiles.values() for kind in entry["values"]))
    rows = [["share of a worker's time", *(CASES[name].title for name in profiles)]]
    for kind in kinds:
        rows.append([kind, *(f"{100 * entry['values'].get(kind, 0.0):.1f} %" for entry in profiles.values())])
    return f"## Where a worker's time goes\n\n{as_markdown(rows)}\n\n{_conditions(next(iter(profiles.values())))}"


def _startup(measured: Mapping[str, Any]) -> str:
    if "startup" not in measured:
        return ""
    entry = measured["startup"]["femnist-cnn"]
    first, later = entry["values"][0], statistics.median(entry["values"][1:])
    word = "reached" if max(first, later) < STARTUP_SECONDS else "not reached"
    return (
        "## Start-up\n\n`muster run` on 60,000 pictures in Fashion-MNIST's file format, from the start of the "
        f"process until round 1 begins: {first:.1f} s the first time (data files are decoded), then {later:.1f} s "
        f"(aim < {STARTUP_SECONDS:.0f} s: {word}).\n\n{_conditions(entry)}"
    )


def _memory(measured: Mapping[str, Any]) -> str:
    if "memory" not in measured:
        return ""
    entry = measured["memory"]["femnist-cnn"]
    cohorts = sorted(map(int, next(iter(entry["values"].values()))))
    rows = [["aggregation", *(f"cohort {cohort}, MiB" for cohort in cohorts), "growth, MiB"]]
    for aggregation, peaks in entry["values"].items():
        mib = [peaks[str(cohort)] / 2**20 for cohort in cohorts]
        rows.append([aggregation, *(f"{value:,.0f}" for value in mib), f"{mib[-1] - mib[0]:+,.0f}"])
    return (
        "## Memory\n\nPeak of the sum of PSS over all processes, FEMNIST network, two mini-batches a client. "
        f"FedAvg takes updates as they come; the median needs all of them."
        f"\n\n{as_markdown(rows)}\n\n{_conditions(entry)}"
    )
