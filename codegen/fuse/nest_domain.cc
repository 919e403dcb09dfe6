#include "codegen/fuse/nest_domain.h"

#include <algorithm>

namespace partita {
namespace {

struct Reduction {
  ValueId result = kNoValue;
  std::vector<bool> dims;
  bool innermost = false, all = true;
};

Reduction describe(const CodeGraph& code, const Node& node) {
  const Shape& shape = code.shape(node.inputs[0]);
  Reduction r{node.outputs[0], reduced_dims(node, shape.size())};
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    r.innermost = r.dims[d];
    r.all = r.all && r.dims[d];
  }
  return r;
}

int64_t product(const Shape& shape, const std::vector<bool>& chosen) {
  int64_t n = 1;
  for (size_t d = 0; d < shape.size(); ++d) n *= chosen[d] ? shape[d] : 1;
  return n;
}

std::vector<bool> flipped(std::vector<bool> dims) {
  dims.flip();
  return dims;
}

// What a reduction of other dimensions than the innermost keeps is too little to share among threads, of which a GPU
// has more.
bool keeps_few(const CodeGraph& code, const Reduction& r, const Shape& shape) {
  const int64_t kept = product(shape, flipped(r.dims)), reduced = product(shape, r.dims);
  const int64_t enough = (code.on_gpu ? 256 : 16) * kLaneBlock, fewest = code.on_gpu ? 1024 : 64,
                least = code.on_gpu ? 8 : 32;
  return kept >= least && kept < enough && reduced >= fewest && kept * reduced >= 8 * kSerialReduction;
}

// A reduction of other dimensions than the innermost. Its columns are what it reduces (lanes then run along rows), or,
// where the sweep writes whole rows anyway or what is kept is too little to share among threads, the dimensions that it
// keeps: then it is a fold. In strict nests its shape alone decides.
std::vector<bool> columns_of(const GroupView& group, const Reduction& r, const Shape& shape, bool writes_rows) {
  int64_t kept = product(shape, flipped(r.dims)), reduced = product(shape, r.dims);
  bool foldable = kept <= kWideFold && reduced >= kFewestRows;
  if (group.code.strict) return foldable ? flipped(r.dims) : r.dims;
  foldable = foldable && group.stores(r.result) && group.readers(r.result) == 0;
  return foldable && (writes_rows || keeps_few(group.code, r, shape)) ? flipped(r.dims) : r.dims;
}

}  // namespace

bool GroupView::contains(NodeId n) const { return std::binary_search(nodes.begin(), nodes.end(), n); }
bool GroupView::stores(ValueId v) const { return std::find(outputs.begin(), outputs.end(), v) != outputs.end(); }

int GroupView::readers(ValueId v) const {
  int count = 0;
  for (NodeId n : nodes) {
    const auto& inputs = code.graph.nodes[n].inputs;
    count += std::find(inputs.begin(), inputs.end(), v) != inputs.end();
  }
  return count;
}

std::vector<bool> reduced_dims(const Node& node, size_t rank) {
  std::vector<bool> reduced(rank, false);
  for (int64_t d : node.attrs.ints("dims")) reduced[static_cast<size_t>(d)] = true;
  return reduced;
}

std::optional<Domain> choose_domain(const GroupView& group, std::string& why) {
  const CodeGraph& code = group.code;
  auto fail = [&](const char* reason) {
    why = reason;
    return std::nullopt;
  };
  std::vector<Reduction> reductions;
  Domain domain;
  int64_t size = -1, largest = -1;
  for (NodeId n : group.nodes) {
    if (code.roles[n] != NodeRole::kReduction) continue;
    const Node& node = code.graph.nodes[n];
    const Shape& shape = code.shape(node.inputs[0]);
    if (size >= 0 && elements(shape) != size) return fail("reductions of different sizes");
    if (size < 0) domain.shape = shape;
    size = elements(shape);
    // In another shape of as many elements, its dimensions are compared when its operand's index map is known.
    if (shape == domain.shape) reductions.push_back(describe(code, node));
  }
  bool writes_rows = false;
  for (ValueId v : group.outputs) {
    int64_t n = elements(code.shape(v));
    if (reductions.empty() && n > largest) domain.shape = code.shape(v);
    largest = std::max(largest, n);
    writes_rows = writes_rows || n == size;
  }
  if (reductions.empty()) {
    domain.column.assign(domain.shape.size(), false);
    return domain;
  }
  if (size > 0 && largest > size) return fail("an output larger than what is reduced");
  const Reduction *row = nullptr, *other = nullptr;
  bool whole = false;
  for (const Reduction& r : reductions) {
    if (r.all && size > kSerialReduction) {
      if (!group.stores(r.result) || group.readers(r.result) > 0) return fail("a total that takes two steps");
      if (code.strict && !group.is_single()) return fail("a total, whose order is that of no other sweep");
      whole = true;
    } else {
      (r.innermost ? row : other) = &r;
    }
  }
  // A GPU's blocks share out what is reduced, if what is made of it can wait for all of them.
  for (const Reduction& r : reductions) {
    if (code.on_gpu && !code.strict && row == nullptr && !r.all && group.readers(r.result) > 0 &&
        keeps_few(code, r, domain.shape))
      return fail("a sum of few columns that takes two steps");
  }
  domain.column = row != nullptr     ? row->dims
                  : other != nullptr ? columns_of(group, *other, domain.shape, writes_rows || whole)
                                     : inner_columns(domain.shape);
  return domain;
}

bool is_fold(const GroupView& group, const Domain& domain, ValueId v) {
  const CodeGraph& code = group.code;
  NodeId p = code.producer(v);
  if (p == kNoNode || code.roles[p] != NodeRole::kReduction || !group.contains(p) || group.readers(v) > 0) return false;
  const Shape& shape = code.shape(code.graph.nodes[p].inputs[0]);
  if (shape != domain.shape) return false;
  auto dims = reduced_dims(code.graph.nodes[p], shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != 1 && dims[d] != domain.column[d]) return true;
  }
  return false;
}

}  // namespace partita
