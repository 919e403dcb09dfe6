#include "tools/compare/program_difference.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/cat.h"
#include "base/float16.h"
#include "base/quote.h"
#include "tools/compare/step_check.h"

namespace partita {
namespace {

bool is_narrow(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

bool computes_narrow(const Graph& g) {
  return std::any_of(g.values.begin(), g.values.end(), [](const Value& v) { return is_narrow(v.type.dtype); });
}

// A loss scale and what it brings along are there for the precision's sake.
bool is_scaled(const Graph& g) {
  return std::any_of(g.outputs.begin(), g.outputs.end(), [](const GraphOutput& o) { return o.name == "loss_scale"; });
}

// Where ranks divide experts, each has its part of the products, and their sum is made of these: another form of the
// same.
bool has_expert_parts(const Graph& g) {
  return std::any_of(g.nodes.begin(), g.nodes.end(),
                     [](const Node& n) { return n.op->chooses_matrices && n.inputs.size() > 3; });
}

bool same_inputs(const Graph& a, const Graph& b) {
  for (const GraphInput& x : a.inputs) {
    for (const GraphInput& y : b.inputs) {
      if (x.name == y.name && x.kind == y.kind && a.type(x.value) != b.type(y.value)) return false;
    }
  }
  return true;
}

std::string attribute_text(const Attrs& attrs, bool sizes) {
  std::string text;
  for (const auto& [name, value] : attrs.items()) {
    if (!sizes && std::holds_alternative<std::vector<int64_t>>(value)) continue;
    append(text, text.empty() ? "" : ", ", name, "=");
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>) {
            text += "[";
            for (size_t k = 0; k < v.size(); ++k) append(text, k > 0 ? ", " : "", v[k]);
            text += "]";
          } else if constexpr (std::is_same_v<T, DType>) {
            text += dtype_name(v);
          } else {
            append(text, v);
          }
        },
        value);
  }
  return text;
}

// Numbers what is computed, alike in both programs: a value by its op and the numbers of its operands.
class Numbering {
 public:
  static constexpr int kOpen = -2;
  // `open`: what experts make, and what is made of that, is not numbered.
  Numbering(bool strict, bool narrow, bool open) : strict_(strict), narrow_(narrow), open_(open) {}

  // Per value of the graph.
  std::vector<int> number(const Graph& g) {
    std::vector<int> of(g.values.size(), -1);
    for (const GraphInput& in : g.inputs) of[static_cast<size_t>(in.value)] = of_key(cat("input ", in.name));
    for (const State& s : g.states) of[static_cast<size_t>(s.value)] = of_key(cat("state ", s.name));
    for (const Constant& c : g.constants) of[static_cast<size_t>(c.value)] = of_key(constant_key(c.literal));
    // The value that a view, or several with casts between them, is one of.
    std::vector<ValueId> viewed(g.values.size());
    for (size_t v = 0; v < viewed.size(); ++v) viewed[v] = static_cast<ValueId>(v);
    for (const Node& node : g.nodes) {
      const bool rounds =
          node.op->name == "cast" && is_float(g.type(node.inputs[0]).dtype) && is_float(g.type(node.outputs[0]).dtype);
      // What the micro-batches sum up to is what one run of all of them has.
      if (node.op->sums_micro_batches) {
        of[static_cast<size_t>(node.outputs[0])] = of[static_cast<size_t>(node.inputs.back())];
        continue;
      }
      if (node.op->view || rounds) {
        const ValueId out = node.outputs[0], from = viewed[static_cast<size_t>(node.inputs[0])];
        viewed[static_cast<size_t>(out)] = from;
        const Shape& shape = g.type(out).shape;
        if (of[static_cast<size_t>(from)] == kOpen) {
          of[static_cast<size_t>(out)] = kOpen;
          continue;
        }
        of[static_cast<size_t>(out)] =
            shape == g.type(from).shape
                ? of[static_cast<size_t>(from)]
                : of_key(cat("view ", of[static_cast<size_t>(from)], strict_ ? to_string(shape) : ""));
        continue;
      }
      std::string key = cat(node.op->name, "{", attribute_text(node.attrs, strict_), "}");
      bool open = open_ && node.op->chooses_matrices;
      for (ValueId v : node.inputs) {
        const int number = v == kNoValue ? -1 : of[static_cast<size_t>(v)];
        open = open || number == kOpen;
        append(key, ",", number);
      }
      if (open) {
        for (ValueId v : node.outputs) of[static_cast<size_t>(v)] = kOpen;
        continue;
      }
      for (size_t k = 0; k < node.outputs.size(); ++k)
        of[static_cast<size_t>(node.outputs[k])] = of_key(cat(key, "#", k));
    }
    return of;
  }

 private:
  int of_key(std::string key) {
    return keys_.try_emplace(std::move(key), static_cast<int>(keys_.size())).first->second;
  }

  std::string constant_key(const Literal& literal) const {
    if (!strict_) return "constant";
    const bool floats = is_float(literal.type.dtype);
    std::string key =
        cat("constant ", floats ? "float" : dtype_name(literal.type.dtype), to_string(literal.type.shape));
    for (int64_t k = 0; k < elements(literal.type.shape); ++k) {
      if (!floats) {
        append(key, " ", element_i(literal, k));
      } else {
        const double x = element_f(literal, k);
        append(key, " ", narrow_ ? bf16_to_float(float_to_bf16(static_cast<float>(x))) : x);
      }
    }
    return key;
  }

  const bool strict_, narrow_, open_;
  std::map<std::string, int> keys_;
};

std::string operand_text(const Graph& g, ValueId v) {
  if (v == kNoValue) return "-";
  const std::string& name = g.values[static_cast<size_t>(v)].name;
  const Literal* literal = constant_values(g)[static_cast<size_t>(v)];
  if (literal != nullptr && is_float(literal->type.dtype) && elements(literal->type.shape) > 0)
    return cat(is_uniform(*literal) ? "" : "a constant that begins with ", element_f(*literal, 0));
  for (const State& s : g.states) {
    if (s.value == v) return quote(s.name);
  }
  if (!name.empty()) return quote(name);
  return cat("%", v);
}

std::string node_text(const Graph& g, const Node& node) {
  std::string operands;
  for (ValueId v : node.inputs) append(operands, operands.empty() ? "" : ", ", operand_text(g, v));
  const std::string attributes = attribute_text(node.attrs, true);
  return cat(node.op->name, "(", operands, ")", attributes.empty() ? "" : cat(" {", attributes, "}"));
}

struct Numbered {
  const Graph& g;
  std::vector<int> of;
  std::set<int> all = {};

  Numbered(const Graph& graph, Numbering& numbering) : g(graph), of(numbering.number(graph)) {
    all.insert(of.begin(), of.end());
  }
  // Whether the other program computes nothing like this node.
  bool is_own(const Node& node, const Numbered& other) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
      const int number = of[static_cast<size_t>(v)];
      return number != Numbering::kOpen && other.all.count(number) == 0;
    });
  }
};

const Node* first_own(const Numbered& mine, const Numbered& other, bool forward) {
  for (const Node& node : mine.g.nodes) {
    if (node.op->view || (forward && node.segment != Segment::kForward)) continue;
    if (mine.is_own(node, other)) return &node;
  }
  return nullptr;
}

// What the other program has in the place of a node.
const Node* counterpart(const Numbered& mine, const Node& node, const Numbered& other) {
  const Node* same_op = nullptr;
  const std::string origin = mine.g.origin(node);
  for (const Node& x : other.g.nodes) {
    if (!other.is_own(x, mine) || other.g.origin(x) != origin) continue;
    if (x.op == node.op && x.segment == node.segment) return &x;
    if (same_op == nullptr) same_op = &x;
  }
  return same_op;
}

std::string state_text(const Graph& g, const std::string& name) {
  for (const State& s : g.states) {
    if (s.name == name) return to_string(g.type(s.value).shape);
  }
  return "none";
}

}  // namespace

absl::Status check_same_model(const Graph& a, const Graph& b, const std::string& name_a, const std::string& name_b) {
  auto other = [&](std::string_view what, const std::string& name, const std::string& in_a, const std::string& in_b) {
    return absl::InvalidArgumentError(cat("these are bundles of two models: ", what, " ", quote(name), " is ", in_a,
                                          " in ", name_a, " and ", in_b, " in ", name_b,
                                          "; compare bundles of one model and recipe"));
  };
  for (const auto& [mine, theirs] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const GraphInput& in : mine->inputs) {
      if (in.kind != InputKind::kData) continue;
      const bool there = std::any_of(theirs->inputs.begin(), theirs->inputs.end(),
                                     [&](const GraphInput& x) { return x.name == in.name && x.kind == in.kind; });
      if (!there) return other("input", in.name, mine == &a ? "there" : "none", mine == &a ? "none" : "there");
    }
    for (const State& s : mine->states) {
      if (s.kind != StateKind::kParameter && s.kind != StateKind::kFrozen) continue;
      const std::string in_a = state_text(a, s.name), in_b = state_text(b, s.name);
      if (in_a != in_b) return other(enum_name(s.kind), s.name, in_a, in_b);
    }
  }
  return absl::OkStatus();
}

std::optional<ProgramDifference> program_difference(const Graph& a, const Graph& b, const std::string& name_a,
                                                    const std::string& name_b) {
  const bool open = has_expert_parts(a) != has_expert_parts(b);
  Numbering numbering(same_inputs(a, b), computes_narrow(a) || computes_narrow(b), open);
  const Numbered in_a(a, numbering), in_b(b, numbering);
  const bool forward = is_scaled(a) != is_scaled(b);
  const Node *own = first_own(in_a, in_b, forward), *extra = own == nullptr ? first_own(in_b, in_a, forward) : nullptr;
  if (own == nullptr && extra == nullptr) return std::nullopt;
  const Numbered &mine = own != nullptr ? in_a : in_b, &other = own != nullptr ? in_b : in_a;
  const Node& node = own != nullptr ? *own : *extra;
  const Node* there = counterpart(mine, node, other);
  return ProgramDifference{.text = cat("the serial programs differ from ", describe_node(mine.g, node),
                                       " on: ", own != nullptr ? name_a : name_b, " has ", node_text(mine.g, node),
                                       ", ", own != nullptr ? name_b : name_a, " has ",
                                       there != nullptr ? node_text(other.g, *there) : "nothing in its place"),
                           .node = describe_node(mine.g, node)};
}

}  // namespace partita
