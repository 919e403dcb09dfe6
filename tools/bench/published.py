"""Predicted steps beside published ones, each source with constants that were fitted without it: see `published --help`."""
import argparse
import concurrent.futures
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROFILES = f"{HERE}/../../partitioner/planner/cluster/profiles"
# Of what the profiles say was fitted over the rows, the constants that move steps most. A device's own curve is scaled as
# the defaults' is.
CONSTANTS = ("matrix", "memory_traffic", "composed_forward_bytes", "recompute_seconds", "shard_message_bytes", "gather_message_bytes")
CURVES = ("matrix",)
LEAST, MOST = 0.75, 4 / 3
GRID = [LEAST * (MOST / LEAST) ** (k / 12) for k in range(13)]


def read_profiles():
    """The numbers that follow a key, of the defaults and of each device: `KEY: 1.2` or `KEY: {64: 0.2, 128: 0.3}`."""
    found = {"defaults": {}}
    for file in ("a_defaults.yaml", "devices.yaml"):
        at = "defaults"
        for line in open(f"{PROFILES}/{file}", encoding="utf-8"):
            if device := re.match(r"  ([\w-]+):\s*$", line):
                at = device[1]
                found.setdefault(at, {})
            elif entry := re.match(r"\s+(\w+): ([-+.\de]+|\{[-+.\de:, ]+\})\s*(#.*)?$", line):
                found["defaults" if at == "software" else at][entry[1]] = entry[2]
    return found


def scaled(text, by):
    if not text.startswith("{"):
        return f"{float(text) * by:.9g}"
    pairs = (pair.split(":") for pair in text.strip("{}").split(","))
    return "{" + ", ".join(f"{size.strip()}: {min(1, float(share) * by):.9g}" for size, share in pairs) + "}"


def profile_text(found, devices, factors):
    """A file for --profiles in which every device has its constants times `factors`."""
    lines = ["devices:"]
    for device in devices:
        value = lambda key: scaled(found.get(device, {}).get(key, found["defaults"][key]), factors[key])
        lines.append(f"  {device}:")
        lines += [f"    {key}: {value(key)}" for key in CURVES]
        lines.append("    software: {" + ", ".join(f"{key}: {value(key)}" for key in CONSTANTS if key not in CURVES) + "}")
    return "\n".join(lines) + "\n"


class Rows:
    """Published rows that ran, each configuration predicted once."""

    def __init__(self, args, judge):
        self.args, self.judge, self.cases, seen = args, judge, [], {}
        for line in open(args.published + "/measured.jsonl", encoding="utf-8"):
            case, _ = judge.scenario(json.loads(line))
            if case is None or not case["measured"]["step_seconds"]:
                continue
            case["configuration"] = json.dumps([case["model"], case["cluster"], case["train"]])
            number = seen.setdefault(case["source"], {}).setdefault(case["configuration"], len(seen[case["source"]]))
            # Of a large source every so many of its configurations, with all rows of each.
            if number % args.every == 0 or case["source"] not in args.large.split(","):
                self.cases.append(case)
        self.devices = sorted({c["cluster"]["device"] for c in self.cases})
        self.found = read_profiles()

    def predict(self, case, folder, profile):
        model = os.path.join(folder, re.sub(r"\W+", "_", json.dumps(case["model"])) + ".onnx")
        with tempfile.TemporaryDirectory(dir=folder) as own:
            if not os.path.exists(model):
                flags = [f"--{key}={value}" if not isinstance(value, bool) else f"--{key}" if value else f"--no-{key}" for key, value in case["model"].items()]
                call(self.args.partita, "model", "gpt", *flags, "--quiet", "-o", f"{own}/model.onnx")
                os.replace(f"{own}/model.onnx", model)
            for name in ("train", "cluster"):
                open(f"{own}/{name}.yaml", "w", encoding="utf-8").write(self.judge.yaml(case[name]))
            call(self.args.partita, "plan", model, "--train", f"{own}/train.yaml", "--cluster", f"{own}/cluster.yaml", "--profiles", profile, "--allow-infeasible",
                 "--quiet", "-o", f"{own}/plan.json")
            return json.load(open(f"{own}/plan.json", encoding="utf-8"))["predicted"]["step_seconds"]

    def seconds(self, folder, factors, cases):
        """By configuration, with constants that are `factors` times the profiles'."""
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".yaml", encoding="utf-8") as profile:
            profile.write(profile_text(self.found, self.devices, {key: factors.get(key, 1) for key in CONSTANTS}))
            profile.flush()
            each = {c["configuration"]: c for c in cases}
            with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
                return dict(zip(each, pool.map(lambda c: self.predict(c, folder, profile.name), each.values())))


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"published: {' '.join(command)} left with {done.returncode}:\n{done.stderr[-2000:]}")


class Bend:
    """A row's seconds against each constant: a parabola in logarithms through three predictions, and the constants' effects
    added up. What is chosen by it is then predicted by the program."""

    def __init__(self, usual, less, more):
        self.usual = math.log(usual)
        x0, x1 = math.log(LEAST), math.log(MOST)
        self.terms = []
        for low, high in zip(less, more):
            y0, y1 = math.log(low / usual), math.log(high / usual)
            square = (y1 / x1 - y0 / x0) / (x1 - x0)
            self.terms.append([(y0 / x0 - square * x0) * math.log(f) + square * math.log(f) ** 2 for f in GRID])

    def error(self, at, measured):
        return abs(math.exp(self.usual + sum(term[k] for term, k in zip(self.terms, at))) / measured - 1)


def fit(rows):
    """Places on the grid with the least mean error of `rows`, [(bend, measured)], one constant after the other until none moves."""
    middle = min(range(len(GRID)), key=lambda k: abs(math.log(GRID[k])))
    at = [middle] * len(CONSTANTS)
    error = lambda places: sum(bend.error(places, measured) for bend, measured in rows) / len(rows)
    best, moved = error(at), True
    while moved:
        moved = False
        for constant in range(len(CONSTANTS)):
            for k in range(len(GRID)):
                other = at[:constant] + [k] + at[constant + 1:]
                if (found := error(other)) < best - 1e-6:
                    best, at, moved = found, other, True
    return at


def errors(cases, seconds):
    ratios = [seconds[c["configuration"]] / c["measured"]["step_seconds"] for c in cases]
    middle = statistics.median(ratios)
    return {"rows": len(ratios), "ratio": middle, "mape": statistics.mean(abs(q - 1) for q in ratios), "shape": statistics.mean(abs(q / middle - 1) for q in ratios),
            "worst": max(abs(q - 1) for q in ratios)}


def main():
    parser = argparse.ArgumentParser(prog="published", description=f"For each source of published rows: how far predicted steps are from those that were measured, with the profiles' constants, "
                                     f"and with constants that were fitted to the other sources alone ({', '.join(CONSTANTS)}; {LEAST:.2f} to {MOST:.2f} times what the profiles have, mean error over rows).")
    parser.add_argument("--partita", default=f"{HERE}/../../build/release/tools/partita")
    parser.add_argument("--published", required=True, help="folder with measured.jsonl and judge.py, which makes a model, a cluster and a recipe of a row")
    parser.add_argument("--large", default="h,l,p,r", help="sources of which --every so many configurations count (%(default)s)")
    parser.add_argument("--every", type=int, default=4, help="%(default)s")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", help="JSON to write")
    args = parser.parse_args()
    args.partita = os.path.abspath(args.partita)
    spec = importlib.util.spec_from_file_location("judge", args.published + "/judge.py")
    judge = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(judge)
    rows = Rows(args, judge)
    sources = sorted({c["source"] for c in rows.cases})
    result = {"rows": len(rows.cases), "every": args.every, "large": args.large, "constants": CONSTANTS, "sources": {}}
    with tempfile.TemporaryDirectory() as folder:
        usual = rows.seconds(folder, {}, rows.cases)
        print(f"{len(rows.cases)} rows, {len(usual)} configurations", flush=True)
        less, more = ([rows.seconds(folder, {key: by}, rows.cases) for key in CONSTANTS] for by in (LEAST, MOST))
        bends = {key: Bend(usual[key], [s[key] for s in less], [s[key] for s in more]) for key in usual}
        for source in [*sources, "none"]:
            at = fit([(bends[c["configuration"]], c["measured"]["step_seconds"]) for c in rows.cases if c["source"] != source])
            factors = {key: GRID[k] for key, k in zip(CONSTANTS, at)}
            own = [c for c in rows.cases if source in (c["source"], "none")]
            found = {"usual": errors(own, usual), "without_it": errors(own, rows.seconds(folder, factors, own)), "factors": factors}
            result["sources"][source] = found
            print(f"without {source:4} {found['usual']['rows']:4} rows: {100 * found['usual']['mape']:5.1f} % off with the profiles' constants (ratio {found['usual']['ratio']:.2f}, shape "
                  f"{100 * found['usual']['shape']:.1f} %), {100 * found['without_it']['mape']:5.1f} % with those of the other sources (ratio {found['without_it']['ratio']:.2f}, shape "
                  f"{100 * found['without_it']['shape']:.1f} %): " + ", ".join(f"{key} {value:.2f}" for key, value in factors.items() if abs(value - 1) > 0.01), flush=True)
    total = lambda what: sum(found[what]["mape"] * found[what]["rows"] for source, found in result["sources"].items() if source != "none") / len(rows.cases)
    result["all"] = {what: total(what) for what in ("usual", "without_it")}
    print(f"all rows: {100 * result['all']['usual']:.1f} % and {100 * result['all']['without_it']:.1f} %")
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
