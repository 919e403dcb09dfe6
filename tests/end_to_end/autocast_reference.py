#!/usr/bin/env python3
"""How far PyTorch's own bf16 autocast on the CPU is from its fp32, for the exported models: what precision_test.cc holds our bf16 against.

    autocast_reference.py MODELS > tests/data/autocast.json

Each model.onnx is run by PyTorch operator by operator, trained by its train.yaml on its data.npz as judge.py does, once in fp32 and once under torch.autocast; the figure is
|losses in bf16 - losses in float64| / |losses in float64|, the float64 ones from expected.npz. Needs torch, onnx, numpy and pyyaml.
"""
import fnmatch, json, math, os, sys
import numpy as np, onnx, torch, yaml
from onnx import numpy_helper
import torch.nn.functional as F

TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 11: torch.float64}


def ints(t):
    return [int(x) for x in t.reshape(-1).tolist()]


def dims(inputs, attrs, k=1):
    return ints(inputs[k]) if len(inputs) > k and inputs[k] is not None else attrs.get("axes")


def slice_(x, starts, ends, axes=None, steps=None):
    axes = ints(axes) if axes is not None else range(x.ndim)
    steps = ints(steps) if steps is not None else [1] * len(ints(starts))
    for s, e, a, p in zip(ints(starts), ints(ends), axes, steps):
        index = torch.arange(x.shape[a])[slice(s, None if p < 0 and e < -x.shape[a] else e, p)] if p > 0 else torch.arange(x.shape[a]).flip(0)[:: -p]
        x = x.index_select(a, index)
    return x


def gather(x, i, axis):
    i = torch.where(i < 0, i + x.shape[axis], i)
    if axis == 0 and x.ndim == 2 and x.is_floating_point():
        return F.embedding(i, x)
    return x.index_select(axis, i.reshape(-1)).reshape(*x.shape[:axis], *i.shape, *x.shape[axis + 1:])


def gemm(x, w, b, a):
    x = x.t() if a.get("transA") else x
    w = w if a.get("transB") else w.t()
    return F.linear(x, w, b)


def split(x, sizes, a, outputs):
    axis = a.get("axis", 0)
    if sizes is None: return torch.split(x, math.ceil(x.shape[axis] / outputs), axis)
    return torch.split(x, ints(sizes) if sizes.ndim else int(sizes), axis)


def attention(q, k, v, a):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=bool(a.get("is_causal")), scale=a.get("scale"))


def rotary(x, cos, sin, ids):
    cos, sin = ((t[ids] if ids is not None else t)[:, None] for t in (cos, sin))
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def cross_entropy(logits, target, a):
    if logits.ndim > 2:
        logits, target = logits.movedim(1, -1).reshape(-1, logits.shape[1]), target.reshape(-1)
    return F.cross_entropy(logits, target, ignore_index=a.get("ignore_index", -100), reduction=a.get("reduction", "mean"))


def conv(x, w, b, a):
    pads, n = a.get("pads", [0] * 2 * (x.ndim - 2)), x.ndim - 2
    assert pads[:n] == pads[n:]
    return (F.conv1d, F.conv2d)[n - 1](x, w, b, a.get("strides", 1), pads[:n], a.get("dilations", 1), a.get("group", 1))


def pad(x, pads, value):
    n = x.ndim
    p = ints(pads)
    return F.pad(x, [v for d in reversed(range(n)) for v in (p[d], p[d + n])], value=float(value) if value is not None else 0.0)


def gather_nd(x, i):
    return x[tuple(i[..., k] for k in range(i.shape[-1]))]


def run_node(op, i, a, outputs, types):
    x = i[0] if i else None
    y = i[1] if len(i) > 1 else None
    simple = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Pow": torch.pow, "And": torch.logical_and, "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
              "Less": torch.lt, "LessOrEqual": torch.le, "Erf": torch.erf, "IsNaN": torch.isnan, "Neg": torch.neg, "Not": torch.logical_not, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
              "Sigmoid": torch.sigmoid, "Sqrt": torch.sqrt, "Tanh": torch.tanh, "Where": torch.where, "Max": torch.maximum, "MatMul": torch.matmul, "GatherND": gather_nd}
    if op in simple: return simple[op](*i)
    if op == "Div": return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")
    if op == "Cast": return x.to(TYPES[a["to"]])
    if op == "CastLike": return x.to(y.dtype)
    if op in ("Identity", "Dropout"): return x
    if op == "Concat": return torch.cat(i, a["axis"])
    if op == "Shape": return torch.tensor(x.shape[a.get("start", 0):a.get("end")])
    if op == "Reshape": return x.reshape([x.shape[k] if s == 0 else s for k, s in enumerate(ints(y))])
    if op == "Flatten": return x.flatten(a.get("axis", 1))
    if op == "Expand": return x.expand(torch.broadcast_shapes(x.shape, ints(y)))
    if op == "Unsqueeze":
        for d in sorted(d if d >= 0 else d + x.ndim + len(dims(i, a)) for d in dims(i, a)): x = x.unsqueeze(d)
        return x
    if op == "Squeeze": return x.squeeze(dims(i, a)) if dims(i, a) else x.squeeze()
    if op == "Transpose": return x.permute(a["perm"])
    if op == "Slice": return slice_(*i)
    if op in ("Split", "SplitToSequence"):
        parts = split(x, y, a, outputs)
        return list(parts) if op == "SplitToSequence" else parts
    if op == "SequenceAt": return x[int(y)]
    if op == "Gather": return gather(x, y, a.get("axis", 0))
    if op == "Range": return torch.arange(int(x), int(y), int(i[2]))
    if op == "Trilu": return (torch.triu if a.get("upper", 1) else torch.tril)(x, int(y) if y is not None else 0)
    if op == "Pad": return pad(x, y, i[2] if len(i) > 2 else None)
    if op == "CumSum": return torch.cumsum(x, int(y)) - (x if a.get("exclusive") else 0)
    if op == "Einsum": return torch.einsum(a["equation"], *i)
    if op == "TopK": return torch.topk(x, int(y), a.get("axis", -1), bool(a.get("largest", 1)))
    if op == "Softmax": return F.softmax(x, a.get("axis", -1))
    if op in ("ReduceMean", "ReduceSum"): return (torch.mean if op == "ReduceMean" else torch.sum)(x, dims(i, a) or list(range(x.ndim)), keepdim=bool(a.get("keepdims", 1)))
    if op == "Gelu": return F.gelu(x, approximate=a.get("approximate", "none"))
    if op == "Gemm": return gemm(x, y, i[2] if len(i) > 2 else None, a)
    if op == "Conv": return conv(x, y, i[2] if len(i) > 2 else None, a)
    if op == "MaxPool": return F.max_pool2d(x, a["kernel_shape"], a.get("strides"), a.get("pads", [0])[0])
    if op == "GlobalAveragePool": return x.mean(list(range(2, x.ndim)), keepdim=True)
    if op == "BatchNormalization": return F.batch_norm(x, None, None, y, i[2], training=True, eps=a.get("epsilon", 1e-5))
    if op == "LayerNormalization": return F.layer_norm(x, y.shape, y, i[2] if len(i) > 2 else None, a.get("epsilon", 1e-5))
    if op == "RMSNormalization": return F.rms_norm(x, y.shape, y, a.get("epsilon", 1e-5))
    if op == "Attention": return attention(x, y, i[2], a)
    if op == "RotaryEmbedding": return rotary(x, y, i[2], i[3] if len(i) > 3 else None)
    if op == "SoftmaxCrossEntropyLoss": return cross_entropy(x, y, a)
    raise NotImplementedError(op)


def attributes(node):
    return {a.name: a.s.decode() if a.type == onnx.AttributeProto.STRING else onnx.helper.get_attribute_value(a) for a in node.attribute}


def forward(graph, values):
    for node in graph.node:
        a = attributes(node)
        if node.op_type == "Constant":
            values[node.output[0]] = torch.from_numpy(np.array(numpy_helper.to_array(a["value"]))) if "value" in a else torch.tensor(a.get("value_ints", a.get("value_int", a.get("value_float"))))
            continue
        out = run_node(node.op_type, [values[n] if n else None for n in node.input], a, len(node.output), None)
        out = out if isinstance(out, (tuple, list)) and node.op_type != "SplitToSequence" else (out,)
        values.update(zip((n for n in node.output), out))
    return values


def rate(s, lr, t):
    warm, total, low = s.get("warmup", 0), s.get("total", 0), s.get("min_lr", 0.0)
    if t < warm: return lr * (t + 1) / warm
    p = min(max((t - warm) / max(1, total - warm), 0), 1)
    if s.get("kind") == "linear": return lr + (low - lr) * p
    if s.get("kind") == "cosine": return low + (lr - low) / 2 * (1 + math.cos(math.pi * p))
    assert s.get("kind", "constant") == "constant", s
    return lr


def losses(folder, recipe, expected, autocast):
    model = onnx.load(f"{folder}/model.onnx")
    data, steps = np.load(f"{folder}/data.npz"), len(expected["loss"])
    batch, o, out = recipe["batch"]["global"], recipe["optimizer"], []
    weights = {w.name: torch.from_numpy(np.array(numpy_helper.to_array(w))) for w in model.graph.initializer}
    trained = {k[len("paramN/"):] for k in expected.files if k.startswith("paramN/")}
    for n in trained: weights[n].requires_grad_()
    plain = [n for n in sorted(trained) if any(fnmatch.fnmatchcase(n, g) for g in o.get("no_decay", []))]
    decay = o.get("weight_decay", 0)
    groups = [{"params": [weights[n] for n in sorted(trained) if n not in plain], "weight_decay": decay}, {"params": [weights[n] for n in plain], "weight_decay": 0}]
    kind = o["kind"]
    if kind in ("adam", "adamw"):
        opt = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](groups, lr=o["lr"], betas=o.get("betas", (0.9, 0.999)), eps=o.get("eps", 1e-8))
    else:
        opt = torch.optim.SGD(groups, lr=o["lr"], momentum=o.get("momentum", 0.9), nesterov=o.get("nesterov", False))
    rows = data[data.files[0]].shape[0] // steps
    graph_batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value or batch
    for t in range(steps):
        for g in opt.param_groups: g["lr"] = rate(recipe.get("schedule", {}), o["lr"], t)
        opt.zero_grad()
        total = 0.0
        for start in range(t * rows, (t + 1) * rows, graph_batch):
            feeds = {k: torch.from_numpy(data[k][start:start + graph_batch]) for k in data.files}
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                values = forward(model.graph, {**weights, **feeds, "": None})
                l = recipe["loss"]
                if l["kind"] == "output":
                    loss = values[l["output"]]
                else:
                    logits = values[l["output"]]
                    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), feeds[l["target"]].reshape(-1).long(), ignore_index=l.get("ignore_index", -100))
            (loss / (rows // graph_batch)).backward()
            total += float(loss.detach()) / (rows // graph_batch)
        if "clip_grad_norm" in recipe: torch.nn.utils.clip_grad_norm_([weights[n] for n in trained], recipe["clip_grad_norm"])
        opt.step()
        out.append(total)
    return np.array(out)


def main():
    figures = {}
    for name in sorted(os.listdir(sys.argv[1])):
        folder = f"{sys.argv[1]}/{name}"
        if not os.path.exists(f"{folder}/model.onnx") or not os.path.exists(f"{folder}/expected.npz"): continue
        recipe = yaml.safe_load(open(f"{folder}/train.yaml"))
        if recipe.get("optimizer", {}).get("kind") not in ("adam", "adamw", "momentum"): continue
        expected = np.load(f"{folder}/expected.npz")
        exact = expected["loss_f64"]
        far = lambda autocast: float(np.linalg.norm(losses(folder, recipe, expected, autocast) - exact) / np.linalg.norm(exact))
        own = far(False)
        if not own < 1e-5:  # this script has misread the model
            print(f"{name}: fp32 is {own:.1e} off", file=sys.stderr)
            continue
        figures[name] = float(f"{far(True):.3g}")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
