// Which nodes and values of a graph some of its stages compute, where stages have meshes of their own.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

class StageScope {
 public:
  StageScope() = default;  // all of the graph
  // `stages` of a pipeline of `pipeline_size`; nodes are marked with theirs (Node::chunk).
  StageScope(std::set<int64_t> stages, int64_t pipeline_size)
      : stages_(std::move(stages)), pipeline_size_(pipeline_size) {}

  bool is_whole() const { return stages_.empty(); }
  // Of one of the stages, or of none in particular.
  bool has(const Node& node) const {
    return is_whole() || node.chunk == 0 || stages_.count((node.chunk - 1) % pipeline_size_) > 0;
  }
  // For each value, whether forward nodes of the stages read it, or what is made of it.
  std::vector<bool> read(const Graph& graph) const;

 private:
  std::set<int64_t> stages_;
  int64_t pipeline_size_ = 1;
};

}  // namespace partita
