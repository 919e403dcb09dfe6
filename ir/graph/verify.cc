// The rules stand in the order in which they lean on each other: ids are in range before links are followed, links are
// right before types are compared.
#include "ir/graph/verify.h"

#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

using Complaint = std::string;  // empty: nothing to complain about

Complaint about(const Graph& g, size_t n, std::string_view what) {
  const Node& node = g.nodes[n];
  std::string origin =
      node.origin >= 0 && static_cast<size_t>(node.origin) < g.origins.size() ? " for " + g.origins[node.origin] : "";
  return cat("node ", n, " (", node.op ? node.op->name : "no op", origin, "): ", what);
}
Complaint about(const State& s, std::string_view what) { return cat("state ", quote(s.name), ": ", what); }

// The first complaint over all nodes / states.
template <typename F>
Complaint each_node(const Graph& g, F f) {
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    if (Complaint c = f(g.nodes[n]); !c.empty()) return about(g, n, c);
  }
  return "";
}
template <typename F>
Complaint each_state(const Graph& g, F f) {
  for (const State& s : g.states) {
    if (Complaint c = f(s); !c.empty()) return about(s, c);
  }
  return "";
}

Complaint ids(const Graph& g) {
  auto known = [&](ValueId v) { return v >= 0 && static_cast<size_t>(v) < g.values.size(); };
  for (const GraphInput& in : g.inputs) {
    if (!known(in.value)) return cat("input ", quote(in.name), ": no value ", in.value);
  }
  for (const Constant& c : g.constants) {
    if (!known(c.value)) return cat("a constant: no value ", c.value);
  }
  for (const GraphOutput& out : g.outputs) {
    if (!known(out.value)) return cat("output ", quote(out.name), ": no value ", out.value);
  }
  Complaint c = each_state(g, [&](const State& s) -> Complaint {
    if (!known(s.value)) return cat("no value ", s.value);
    return s.next == kNoValue || known(s.next) ? "" : cat("no value ", s.next, " to become");
  });
  if (!c.empty()) return c;
  return each_node(g, [&](const Node& n) -> Complaint {
    if (n.op == nullptr) return "no op";
    if (n.origin < -1 || n.origin >= static_cast<int64_t>(g.origins.size())) return cat("no origin ", n.origin);
    for (ValueId v : n.inputs) {
      if (v != kNoValue && !known(v)) return cat("reads value ", v, ", which there is not");
    }
    for (ValueId v : n.outputs) {
      if (!known(v)) return cat("writes value ", v, ", which there is not");
    }
    return "";
  });
}

Complaint definitions(const Graph& g) {
  std::vector<int> definitions(g.values.size(), 0);
  std::vector<bool> by_node(g.values.size(), false);
  for (const GraphInput& in : g.inputs) ++definitions[in.value];
  for (const State& s : g.states) ++definitions[s.value];
  for (const Constant& c : g.constants) ++definitions[c.value];
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    for (size_t k = 0; k < g.nodes[n].outputs.size(); ++k) {
      ValueId v = g.nodes[n].outputs[k];
      ++definitions[v];
      by_node[v] = true;
      if (g.values[v].producer != static_cast<NodeId>(n) || g.values[v].output != static_cast<int>(k)) {
        return about(g, n,
                     cat("value ", v, " is its output ", k, ", but says to be output ", g.values[v].output, " of node ",
                         g.values[v].producer));
      }
    }
  }
  for (size_t v = 0; v < g.values.size(); ++v) {
    if (definitions[v] != 1) return cat("value ", v, " is defined ", definitions[v], " times");
    if (!by_node[v] && g.values[v].producer != kNoNode)
      return cat("value ", v, " is no output of node ", g.values[v].producer);
  }
  return "";
}

Complaint order(const Graph& g) {
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    for (ValueId v : g.nodes[n].inputs) {
      if (v != kNoValue && g.values[v].producer >= static_cast<NodeId>(n))
        return about(g, n, cat("reads value ", v, " of node ", g.values[v].producer, ", which runs later"));
    }
  }
  return "";
}

Complaint types(const Graph& g) {
  for (size_t v = 0; v < g.values.size(); ++v) {
    const TensorType& t = g.type(static_cast<ValueId>(v));
    if (t.dtype == DType::kInvalid || !checked_elements(t.shape))
      return cat("value ", v, " has no sound type: ", to_string(t));
  }
  for (const Constant& c : g.constants) {
    if (c.literal.type != g.type(c.value))
      return cat("constant ", c.value, ": expected ", to_string(g.type(c.value)), ", found ",
                 to_string(c.literal.type));
    if (c.literal.data == nullptr && byte_size(c.literal.type) > 0) return cat("constant ", c.value, " has no bytes");
  }
  for (const GraphInput& in : g.inputs) {
    if (in.kind != InputKind::kData && g.type(in.value) != TensorType{DType::kI64, {}}) {
      return cat("input ", quote(in.name), ": expected i64[], found ", to_string(g.type(in.value)));
    }
  }
  return each_node(g, [&](const Node& n) -> Complaint {
    std::vector<TensorType> in = input_types(g, n);
    auto inferred = infer_types(*n.op, {n.attrs, in});
    if (!inferred.ok()) return cat(inferred.status().message());
    if (inferred->size() != n.outputs.size())
      return cat("expected ", inferred->size(), " outputs, found ", n.outputs.size());
    for (size_t k = 0; k < n.outputs.size(); ++k) {
      if (g.type(n.outputs[k]) != (*inferred)[k])
        return cat("output ", k, ": expected ", to_string((*inferred)[k]), ", found ", to_string(g.type(n.outputs[k])));
    }
    return "";
  });
}

Complaint names(const Graph& g) {
  std::set<std::string_view> states, inputs, outputs;
  for (const State& s : g.states) {
    if (s.name.empty() || !states.insert(s.name).second) return about(s, "expected a name of its own");
  }
  // A rank's program may read one column of the data twice: its micro-batch, and all samples of the run.
  for (const GraphInput& in : g.inputs) {
    bool again = !inputs.insert(in.name).second && in.kind != InputKind::kData;
    if (in.name.empty() || again) return cat("input ", quote(in.name), ": expected a name of its own");
  }
  for (const GraphOutput& out : g.outputs) {
    if (out.name.empty() || !outputs.insert(out.name).second)
      return cat("output ", quote(out.name), ": expected a name of its own");
  }
  return "";
}

Complaint states(const Graph& g) {
  std::set<std::string_view> parameters;
  for (const State& s : g.states) {
    if (s.kind == StateKind::kParameter) parameters.insert(s.name);
  }
  return each_state(g, [&](const State& s) -> Complaint {
    const TensorType& type = g.type(s.value);
    if (s.next != kNoValue && g.type(s.next) != type)
      return cat("is ", to_string(type), " and becomes ", to_string(g.type(s.next)));
    if (s.kind == StateKind::kFrozen && s.next != kNoValue) return "is frozen, yet written";
    if (s.kind == StateKind::kStep && type != TensorType{DType::kI64, {}})
      return cat("expected a step of type i64[], found ", to_string(type));
    if (!s.parameter.empty() && !parameters.contains(s.parameter))
      return cat("belongs to ", quote(s.parameter), ", which is no parameter");
    bool owned = s.kind == StateKind::kOptimizer || s.kind == StateKind::kAccumulator;
    if (!owned && !s.parameter.empty())
      return cat("a ", s.kind == StateKind::kParameter ? "parameter" : "state of its kind", " belongs to no other");
    return "";
  });
}

// Local values may start from a part of a whole tensor, so this holds for whole programs only. A frozen weight in 16
// bits may start from f32 values, which are rounded.
Complaint initial_values(const Graph& g) {
  return each_state(g, [&](const State& s) -> Complaint {
    const TensorType& type = g.type(s.value);
    const bool narrow = s.kind == StateKind::kFrozen && (type.dtype == DType::kBF16 || type.dtype == DType::kF16);
    const TensorType wide = narrow ? TensorType{DType::kF32, type.shape} : type;
    if (const auto* literal = std::get_if<Literal>(&s.initial);
        literal && literal->type != type && literal->type != wide)
      return cat("is ", to_string(type), ", starts as ", to_string(literal->type));
    if (const auto* file = std::get_if<FileRange>(&s.initial);
        file && (file->offset < 0 || (file->bytes != byte_size(type) && file->bytes != byte_size(wide)))) {
      return cat("is ", byte_size(type), " bytes, starts from ", file->bytes, " at ", file->offset);
    }
    return "";
  });
}

// A node may read what is ready when its segment runs: values of its own, of its turn of a pass and of those before,
// and of earlier segments. Evaluation runs on its own.
Complaint segments(const Graph& g) {
  return each_node(g, [&](const Node& n) -> Complaint {
    for (ValueId v : n.inputs) {
      const Node* from = v == kNoValue ? nullptr : g.producer(v);
      if (from == nullptr) continue;
      const bool one_pass =
          from->segment == n.segment && from->chunk == n.chunk && from->weight_gradient == n.weight_gradient;
      if (one_pass && from->turn > n.turn)
        return cat("is in turn ", n.turn, ", yet reads value ", v, " of turn ", from->turn);
      if (from->segment == n.segment) continue;
      bool apart = from->segment == Segment::kEvaluation || n.segment == Segment::kEvaluation;
      if (apart || from->segment > n.segment)
        return cat("is in ", enum_name(n.segment), ", yet reads value ", v, " of ", enum_name(from->segment));
    }
    return "";
  });
}

// Which segments write a state: what a later micro-batch or step reads must be there.
Complaint writers(const Graph& g) {
  return each_state(g, [&](const State& s) -> Complaint {
    const Node* from = s.next == kNoValue ? nullptr : g.producer(s.next);
    if (from == nullptr) return "";
    if (from->segment == Segment::kEvaluation) return "is written by evaluation";
    bool updated = s.kind == StateKind::kParameter || s.kind == StateKind::kOptimizer || s.kind == StateKind::kStep;
    if (updated && from->segment < Segment::kReduce)
      return cat("is written in ", enum_name(from->segment), ", not in update");
    if (s.kind == StateKind::kRunning && from->segment > Segment::kForward && from->segment != Segment::kUpdate)
      return cat("is written in ", enum_name(from->segment), ", not in forward or update");
    if (s.kind == StateKind::kAccumulator && from->segment > Segment::kReduce)
      return cat("is written in ", enum_name(from->segment), ", after the micro-batches");
    return "";
  });
}

Complaint weight_gradients(const Graph& g) {
  return each_node(g, [&](const Node& n) -> Complaint {
    return n.weight_gradient && n.segment != Segment::kBackward
               ? cat("computes a weight's gradient in ", enum_name(n.segment))
               : "";
  });
}

Complaint forward_only(const Graph& g) {
  Complaint c = each_node(g, [&](const Node& n) -> Complaint {
    bool fits = n.segment == Segment::kForward || n.segment == Segment::kPrologue || n.segment == Segment::kEvaluation;
    return fits ? "" : cat("is in ", enum_name(n.segment), " before there is a backward part");
  });
  if (!c.empty()) return c;
  return each_state(g, [&](const State& s) -> Complaint {
    bool fits = s.kind != StateKind::kOptimizer && s.kind != StateKind::kAccumulator;
    return fits ? "" : "an optimizer's state before there is an optimizer";
  });
}

Complaint one_device(const Graph& g) {
  for (const GraphInput& in : g.inputs) {
    if (in.kind == InputKind::kCoordinate)
      return cat("input ", quote(in.name), " is a coordinate before there is a mesh");
  }
  return each_node(
      g, [&](const Node& n) -> Complaint { return n.op->communicates ? "communicates before there is a mesh" : ""; });
}

struct Rule {
  std::string_view name;
  bool imported, training, rank;  // the phases that it holds in
  Complaint (*check)(const Graph&);
};

constexpr Rule kRules[] = {
    {"ids", true, true, true, ids},
    {"definitions", true, true, true, definitions},
    {"order", true, true, true, order},
    {"types", true, true, true, types},
    {"names", true, true, true, names},
    {"states", true, true, true, states},
    {"initial values", true, true, false, initial_values},
    {"segments", true, true, true, segments},
    {"writers", true, true, true, writers},
    {"weight gradients", true, true, true, weight_gradients},
    {"forward only", true, false, false, forward_only},
    {"one device", true, true, false, one_device},
};

}  // namespace

absl::Status verify(const Graph& graph, Phase phase) {
  for (const Rule& rule : kRules) {
    if (!(phase == Phase::kImported ? rule.imported : phase == Phase::kTraining ? rule.training : rule.rank)) continue;
    if (Complaint c = rule.check(graph); !c.empty()) return absl::InternalError(cat(rule.name, ": ", c));
  }
  return absl::OkStatus();
}

}  // namespace partita
