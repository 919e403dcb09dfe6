// The operations of a nest: what each value of a group is at a point of the loops.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "codegen/fuse/nest_domain.h"
#include "ir/nest/affine.h"
#include "ir/nest/loop_nest.h"

namespace partita {

// A loop over part of a dimension of the domain (or all of it).
struct BoxLoop {
  int64_t size = 1;
  bool column = false;
  int64_t step = 1;  // in the row-major number of the domain's points
};

// A part of the domain: the points origin + sum of step * index.
struct Box {
  int64_t origin = 0;
  std::vector<BoxLoop> loops;
};

enum class Outcome {
  kBuilt,
  kRefine,  // a loop must be two: `split`
  kCut,     // the box must be two: `cut_loop`, `cut_at`
  kFailed,  // `why`
};

class NestValues {
 public:
  NestValues(const GroupView& group, const Domain& domain, const Box& box);

  // The node for value `v` at index `map`: of the group or free, computed; else loaded. -1 where outcome() is not
  // kBuilt.
  int generate(ValueId v, const IndexMap& map);
  int push(NestNode node);

  // The row-major number of a point: in the domain, or among the rows or the columns alone (there are no boxes then).
  Affine point_number(bool rows, bool columns) const;
  // The index along each dimension of `shape` from an element number.
  Outcome fit(const Affine& linear, const Shape& shape, IndexMap& map);
  int64_t points(bool rows, bool columns) const;
  bool has_columns() const;
  bool is_column(size_t loop) const { return box_.loops[loop].column; }

  Outcome fail(std::string reason);
  Outcome outcome() const { return outcome_; }

  // How a node of the group was computed: once for each map, varying along some loops.
  struct Visit {
    std::vector<std::vector<int64_t>> maps;
    std::vector<bool> along;
  };

  LoopNest nest;                  // sizes and nodes
  std::vector<ValueId> operands;  // of nest's loads
  std::map<NodeId, Visit> visits;
  std::string why;
  ValueId obstacle = kNoValue;  // kFailed: a free value that could be read if it were stored
  LoopSplit split;
  size_t cut_loop = 0;
  int64_t cut_at = 0;

 private:
  int generate_node(NodeId p, ValueId v, const IndexMap& map);
  int view(ValueId x, ValueId v, const IndexMap& map);
  int elementwise(const Node& node, ValueId v, const IndexMap& map);
  int reduction(const Node& node, ValueId v, const IndexMap& map);
  int pad(const Node& node, const IndexMap& map);
  int concat(const Node& node, const IndexMap& map);
  int index(const Affine& a);
  int load(ValueId v, const Affine& at);
  int constant(const Literal& literal);
  int push_scalar(const ScalarNode& s);
  bool is_constant(int node, double value) const;
  int part_of(const Affine& index, const std::vector<int64_t>& starts);
  void note(NodeId n, const IndexMap& map);
  IndexMap aligned(const IndexMap& map, const Shape& shape) const;
  IndexMap moved(const Node& node, const IndexMap& map) const;

  const GroupView& group_;
  const CodeGraph& code_;
  const Graph& graph_;
  const Domain& domain_;
  const Box& box_;
  size_t loops_;
  std::vector<uint64_t> hashes_;
  std::map<std::vector<int64_t>, int> memo_;
  Outcome outcome_ = Outcome::kBuilt;
  int depth_ = 0;
};

}  // namespace partita
