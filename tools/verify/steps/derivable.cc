#include "tools/verify/steps/derivable.h"

#include <algorithm>
#include <map>
#include <utility>

namespace partita::verifier {
namespace {

// The elements of a value from `low` up to `high` in each dimension.
struct Box {
  Shape low, high;

  bool empty() const {
    for (size_t d = 0; d < low.size(); ++d) {
      if (low[d] >= high[d]) return true;
    }
    return false;
  }
  bool holds(const Box& other) const {
    for (size_t d = 0; d < low.size(); ++d) {
      if (other.low[d] < low[d] || other.high[d] > high[d]) return false;
    }
    return true;
  }
};

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

// The least box that has the row-major elements from `first` to `last`.
Box box_of_run(const Shape& shape, int64_t first, int64_t last) {
  Box box = whole(shape);
  if (box.empty()) return box;
  int64_t inner = elements(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    inner /= shape[d];
    box.low[d] = first / inner, box.high[d] = last / inner + 1;
    if (box.low[d] + 1 < box.high[d]) break;  // the dimensions inside are whole
    first %= inner, last %= inner;
  }
  return box;
}

// A box that has the elements of `box` (of `from`) under the shape `to`.
Box reshaped(const Box& box, const Shape& from, const Shape& to) {
  int64_t first = 0, last = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    first = first * from[d] + box.low[d];
    last = last * from[d] + box.high[d] - 1;
  }
  return box_of_run(to, first, last);
}

// What an elementwise op reads of an operand for a box of its result: aligned at the last dimension, of size 1 read for
// all.
Box broadcast_from(const Box& box, const Shape& operand) {
  Box read = whole(operand);
  const size_t outer = box.low.size() - operand.size();
  for (size_t d = 0; d < operand.size(); ++d) {
    if (operand[d] > 1) read.low[d] = box.low[outer + d], read.high[d] = box.high[outer + d];
  }
  return read;
}

class Derivation {
 public:
  Derivation(const Graph& graph, const std::vector<ValueId>& storage, const std::vector<const Literal*>& literals,
             const std::set<int>& given)
      : g_(graph), storage_(storage), literals_(literals), given_(given) {}

  int missing(ValueId value) {
    open_.emplace_back(value, whole(shape(value)));
    while (!open_.empty()) {
      auto [v, box] = std::move(open_.back());
      open_.pop_back();
      if (box.empty() || literals_[storage_[v]] != nullptr || is_seen(v, box)) continue;
      if (given_.count(storage_[v]) && storage_[v] != storage_[value]) continue;
      const Node* node = g_.producer(v);
      if (node == nullptr || node->op->kernel || node->op->communicates || node->op->name == "stash") return v;
      read(*node, box);
    }
    return -1;
  }

 private:
  const Shape& shape(ValueId v) const { return g_.type(v).shape; }

  bool is_seen(ValueId v, const Box& box) {
    std::vector<Box>& boxes = seen_[v];
    if (std::any_of(boxes.begin(), boxes.end(), [&](const Box& b) { return b.holds(box); })) return true;
    boxes.push_back(box);
    return false;
  }

  void read(const Node& node, const Box& box) {
    const ValueId x = node.inputs.empty() ? kNoValue : node.inputs[0];
    if (node.op->view) {
      open_.emplace_back(x, reshaped(box, shape(node.outputs[0]), shape(x)));
    } else if (node.op->name == "slice") {
      read_slice(node, box);
    } else if (node.op->name == "concat") {
      read_concat(node, box);
    } else if (node.op->name == "transpose") {
      const auto& permutation = node.attrs.ints("permutation");
      Box in = box;
      for (size_t d = 0; d < permutation.size(); ++d) {
        const auto from = static_cast<size_t>(permutation[d]);
        in.low[from] = box.low[d], in.high[from] = box.high[d];
      }
      open_.emplace_back(x, std::move(in));
    } else {
      for (ValueId in : node.inputs) {
        if (in == kNoValue) continue;
        open_.emplace_back(in, node.op->scalar != nullptr ? broadcast_from(box, shape(in)) : whole(shape(in)));
      }
    }
  }

  void read_slice(const Node& node, Box box) {
    const auto &starts = node.attrs.ints("starts"), &strides = node.attrs.ints("strides");
    for (size_t d = 0; d < starts.size(); ++d) {
      box.high[d] = starts[d] + (box.high[d] - 1) * strides[d] + 1;
      box.low[d] = starts[d] + box.low[d] * strides[d];
    }
    open_.emplace_back(node.inputs[0], std::move(box));
  }

  void read_concat(const Node& node, const Box& box) {
    const auto dim = static_cast<size_t>(node.attrs.i("dim"));
    int64_t at = 0;
    for (ValueId in : node.inputs) {
      const int64_t size = shape(in)[dim];
      Box part = box;
      part.low[dim] = std::max<int64_t>(box.low[dim] - at, 0), part.high[dim] = std::min(box.high[dim] - at, size);
      open_.emplace_back(in, std::move(part));  // perhaps an empty one
      at += size;
    }
  }

  const Graph& g_;
  const std::vector<ValueId>& storage_;
  const std::vector<const Literal*>& literals_;
  const std::set<int>& given_;
  std::vector<std::pair<ValueId, Box>> open_;
  std::map<ValueId, std::vector<Box>> seen_;
};

}  // namespace

std::vector<ValueId> storage_of(const Graph& graph) {
  std::vector<ValueId> storage(graph.values.size());
  for (size_t v = 0; v < storage.size(); ++v) storage[v] = static_cast<ValueId>(v);
  for (const Node& node : graph.nodes) {
    if (node.op->view) storage[node.outputs[0]] = storage[node.inputs[0]];
  }
  return storage;
}

int underivable(const Graph& graph, const std::vector<ValueId>& storage, const std::vector<const Literal*>& literals,
                int value, const std::set<int>& given) {
  return Derivation(graph, storage, literals, given).missing(value);
}

}  // namespace partita::verifier
