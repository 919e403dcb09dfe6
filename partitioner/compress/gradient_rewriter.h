// The walk that error feedback in gradients' sums needs: over a rank's graph, with sums kept open until several can be
// done together, and states that are each rank's own.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "ir/graph/builder.h"
#include "partitioner/compress/compress_gradients.h"
#include "partitioner/compress/gradient_sums.h"

namespace partita {

class GradientRewriter {
 public:
  // Of the sums over some of `axes`.
  GradientRewriter(LocalProgram& program, const std::vector<int>& axes);
  virtual ~GradientRewriter() = default;

  CompressedGradients run();

 protected:
  // A sum whose term is there. True: it is open, and close() does it; false: it stays as it is.
  virtual bool open(const GradientSum& sum) = 0;
  // Does all that are open, each ending with replace().
  virtual void close() = 0;

  // Closes the open sums, if there are any, and emits what has waited for them.
  void flush();
  // `x`, plus what a state of this rank's own holds: `remainder` is that state's name.
  ValueId with_remainder(const GradientSum& sum, ValueId x, std::string& remainder);
  // The value that stands for the sum from now on, emitted where it is read: after backward.
  void after_backward(const GradientSum& sum);
  void replace(const GradientSum& sum, ValueId value);
  // In the update, with what states become.
  void in_update(const GradientSum& sum);
  // "compress/LAYOUT/PARAMETER/WHAT": the layout, since ranks of another one share gradients otherwise.
  std::string state_name(const GradientSum& sum, const std::string& what);
  // [begin, end) of the value's dimension `dim`.
  ValueId part(ValueId v, int dim, int64_t begin, int64_t end);
  // This rank's index along the mesh axis, an input of the program.
  ValueId coordinate(int64_t axis);
  // Mesh axes along which ranks have the same sum: those it is over, and those that its parameter is not divided along.
  std::vector<int64_t> alike_along(const GradientSum& sum) const;
  // A state for the optimizer, of which ranks that differ only along `shared` mesh axes have the same, all others their
  // own: whole, it has these as its first dimension.
  ValueId kept_state(const std::string& name, TensorType type, InitialRule initial, const std::vector<int64_t>& shared);
  void keep(const std::string& name, ValueId value);

  LocalProgram& program_;
  const Graph& graph_;
  const GradientSums sums_;
  Rewriter r_;
  Builder& b_;
  CompressedGradients done_;
  bool any_open_ = false;

 private:
  bool same_part(const Node& a, const Node& b) const;
  bool is_ready(const Node& node) const;
  void copy(const Node& node);
  void later(const GradientSum& sum, Segment segment);

  std::vector<int> rank_axes_;  // all but the stages'
  std::string layout_;
  std::vector<const Node*> waiting_;  // nodes of backward that read open sums
  std::set<std::string> names_;
};

}  // namespace partita
