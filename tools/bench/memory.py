"""Counted memory beside that of the program that the compiler lays out: see `memory --help`."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from plans import LLAMA, MODELS, RECIPE, RECIPES, Bench

OWN = {
    "GPT-2 XL": "gpt --layers 48 --hidden 1600 --heads 25 --vocab 50257 --seq 1024",
    "Llama 70B": f"gpt --layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --vocab 128256 --seq 8192 {LLAMA}",
    "ViT-H": "vit --layers 32 --hidden 1280 --heads 16 --image 224 --patch 14",
}
VIT = "loss: {kind: cross_entropy, output: logits, target: target}\n" + RECIPE
CLUSTER = "nodes: {nodes}\ndevices_per_node: {each}\ndevice: {{like: H100-80GB, memory: 1.0e+14}}\n"  # all is laid out
ALONE = "tensor=1 pipeline=1 context=1 expert=1 offload=none micro_batch=1 recompute=none zero=0"
FULL = "recompute=full"
DENSE = ["", FULL, "zero=1", "zero=2", "zero=3", f"zero=3 {FULL}", "zero=3 reshard_after_forward=false", f"zero=3 {FULL} reshard_after_forward=false", "zero=1 micro_batch=4", "zero=1 offload=optimizer", "zero=1 offload=optimizer offload_fraction=0.25", "zero=3 offload=all", "offload=all",
         "tensor=4", "tensor=4 sequence_parallel=true zero=1", f"tensor=8 sequence_parallel=true zero=1 {FULL}"]
PIPED = ["pipeline=4 schedule=1f1b", f"pipeline=4 schedule=1f1b zero=1 {FULL}", "pipeline=4 schedule=1f1b zero=2", f"pipeline=4 schedule=1f1b zero=3 {FULL}", "pipeline=4 schedule=gpipe zero=1", "pipeline=4 schedule=zero_bubble zero=1", f"pipeline=4 schedule=zero_bubble zero=1 {FULL}",
         "pipeline=4 schedule=interleaved interleave=2 zero=1", f"pipeline=4 schedule=interleaved interleave=4 {FULL}",
         "pipeline=4 tensor=2 sequence_parallel=true schedule=1f1b zero=1", "pipeline=4 schedule=1f1b zero=1 offload=optimizer offload_fraction=0.5"]
LARGE = [f"tensor=8 sequence_parallel=true pipeline={stages} zero=1 {schedule} recompute={again}"
         for stages in (4, 8) for schedule in ("schedule=1f1b", "schedule=interleaved interleave=2", "schedule=interleaved interleave=5")
         for again in ("none", "full")]
MATH = "kernels: {attention: math}\n"
# model, devices, samples of a step, lines of the recipe, pins beside those of ALONE
CASES = [
    ("GPT-2 XL", 8, 64, "", [*DENSE, *PIPED]),
    ("GPT-2 XL", 8, 64, MATH, ["", "recompute=selective", FULL, "tensor=4 pipeline=2 schedule=1f1b recompute=selective"]),
    ("Llama 8B", 8, 64, "", [*DENSE, "context=4 zero=1", "context=2 zero=3", "recompute=all_but_attention", "context=4 zero=1 recompute=all_but_attention",
                           "tensor=4 recompute=all_but_attention"]),
    ("Llama 8B", 64, 512, "", [*PIPED, "pipeline=8 tensor=4 schedule=1f1b", "pipeline=8 schedule=interleaved interleave=2", "context=4 pipeline=4 schedule=1f1b",
                             *(f"pipeline=4 {t} schedule=zero_bubble zero=1 recompute={again}" for t in ("", "tensor=2 sequence_parallel=true") for again in ("all_but_attention", "offload", "full_offload"))]),
    ("Llama 70B", 64, 256, "", [f"zero=3 {FULL}", f"tensor=8 sequence_parallel=true zero=1 {FULL}", *LARGE]),
    ("Llama 405B", 512, 512, "", ["tensor=8 sequence_parallel=true pipeline=16 zero=1 schedule=1f1b", f"tensor=8 sequence_parallel=true pipeline=16 zero=1 schedule=1f1b {FULL}",
                                 "tensor=8 sequence_parallel=true pipeline=16 zero=1 schedule=interleaved interleave=4"]),
    ("Mixtral 8x7B", 32, 256, "", ["expert=8 zero=1", f"expert=8 zero=1 {FULL}", "expert=8 pipeline=4 schedule=1f1b zero=1"]),
    ("ViT-H", 8, 512, "", ["micro_batch=16", "micro_batch=16 zero=3", f"micro_batch=16 {FULL}", "micro_batch=16 tensor=4", "micro_batch=8 pipeline=4 schedule=1f1b"]),
    ("ResNet-50", 8, 2048, "", ["micro_batch=256", "micro_batch=64 zero=1"]),
]


def pins_of(text):
    pins = dict(p.split("=") for p in f"{ALONE} {text}".split())
    if pins["tensor"] != "1":
        pins.setdefault("sequence_parallel", "false")
    return " ".join(f"{k}={v}" for k, v in pins.items())


def layouts(bench, only):
    """Rows: model, devices, pins, and for each stage the bytes counted and laid out, without the reserve."""
    rows = []
    for name, devices, batch, lines, all_pins in CASES:
        if only and only not in name:
            continue
        each = min(8, devices)
        task = bench.task(name, CLUSTER.format(nodes=devices // each, each=each), batch, lines)
        for text in all_pins:
            row = {"model": name, "devices": devices, "layout": f"{lines.strip()} {text}".strip()}
            file = f"{bench.folder}/plan.json"
            done = subprocess.run([bench.partita, "plan", *task, "--quiet", "-o", file, *(f"--pin={p}" for p in pins_of(text).split())], capture_output=True, text=True)
            if done.returncode:
                row["refused"] = done.stderr.strip()[-300:]
            else:
                plan = json.load(open(file))
                row["counted"] = [s["memory"]["total"] - s["memory"]["reserve_assumed"] for s in plan["stages"]]
                row["parts"] = [s["memory"] for s in plan["stages"]]
                row["laid_out"] = plan["predicted"]["program_bytes"]
            rows.append(row)
            tell(row)
    return rows


def worst(row):
    """The stage whose count is farthest off, and program over count there."""
    ratios = [p / c for p, c in zip(row["laid_out"], row["counted"])]
    stage = max(range(len(ratios)), key=lambda s: max(ratios[s], 1 / ratios[s]))
    return stage, ratios[stage]


def tell(row):
    if "refused" in row:
        print(f"{row['model']:<13}{row['devices']:>4}  {row['layout']:<76} refused: {row['refused']}", flush=True)
        return
    stage, ratio = worst(row)
    most, needs = max(row["counted"]), max(row["laid_out"])
    parts = " ".join(f"{k[:5]} {v / 1e9:.2f}" for k, v in row["parts"][stage].items() if k not in ("total", "reserve_assumed") and v > 5e6)
    print(f"{row['model']:<13}{row['devices']:>4}  {row['layout']:<76} {most / 1e9:>8.2f} {needs / 1e9:>8.2f} {needs / most:>6.3f}   stage {stage}: {ratio:>6.3f}  {row['laid_out'][stage] / 1e9:.2f} of {parts}", flush=True)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(prog="memory", description="Plans pinned layouts on devices with room for any, and prints the memory that the plan counts and that the compiler lays out for its "
                                     "program, in GB beside the reserve: of the fullest stage, and of the stage whose count is farthest off.")
    parser.add_argument("--partita", default=f"{here}/../../build/release/tools/partita")
    parser.add_argument("--only", default="", help="models whose name has this text")
    parser.add_argument("--output", help="JSON to write")
    args = parser.parse_args()
    MODELS.update(OWN), RECIPES.update({"ViT-H": VIT})
    with tempfile.TemporaryDirectory() as folder:
        rows = layouts(Bench(os.path.abspath(args.partita), folder), args.only)
    good = [r for r in rows if "laid_out" in r]
    off = sorted((max(worst(r)[1], 1 / worst(r)[1]) for r in good), reverse=True)
    fullest = [max(r["laid_out"]) / max(r["counted"]) for r in good]
    print(f"{len(good)} layouts of {len(rows)}; stages farthest off by: " + ", ".join(f"{sum(o <= 1 + b for o in off)} within {b:.0%}" for b in (0.06, 0.1, 0.14, 0.2)))
    print(f"fullest stage, laid out over counted: {min(fullest):.3f} to {max(fullest):.3f}")
    if args.output:
        with open(args.output, "w") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
