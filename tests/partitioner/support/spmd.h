// All ranks of a local program in one process, in wide arithmetic: the reference that the transformation is held
// against.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "partitioner/localize/local_program.h"

namespace partita {

using Tensors = std::map<std::string, Tensor>;  // whole logical tensors by name

// The part of `whole` that a rank with these coordinates holds.
Tensor shard_of(const Tensor& whole, const Sharding& sharding, const Mesh& mesh,
                const std::vector<int64_t>& coordinates);
// Writes a rank's part back into `whole`.
void unshard(Tensor& whole, const Tensor& part, const Sharding& sharding, const Mesh& mesh,
             const std::vector<int64_t>& coordinates);

struct SpmdResult {
  Tensors outputs, states;  // states after the step
};

// One training step of the programs of a pipeline's stages, each by its schedule. `inputs` hold the step's samples for
// all micro-batches, one after the other along dimension 0.
SpmdResult run_spmd(const std::vector<LocalProgram>& stages, const Tensors& inputs, const Tensors& states);
SpmdResult run_spmd(const LocalProgram& program, const Tensors& inputs, const Tensors& states);

}  // namespace partita
