// A program's tensors from and to safetensors files of whole logical tensors: each rank reads and writes its own boxes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// A tensor of the program as this rank holds it.
struct HeldTensor {
  std::string name;  // in the file
  DType dtype = DType::kF32;
  const Placement* placement = nullptr;
  std::span<std::byte> memory;
};

// Puts every state to its first value: from `file` by its boxes, filled, or drawn by global element index (so that
// every plan starts equal). NotFound, InvalidArgument where the file lacks a tensor or has another shape.
absl::Status initialize_states(const Program& program, std::span<const int64_t> coordinates, const std::string& file,
                               uint64_t seed, const std::function<std::span<std::byte>(const Operand&)>& memory);

// Writes one file from all ranks. A part that several ranks hold is written by one. Collective: every rank of the
// communicator (null: one rank) calls it.
absl::Status save_tensors(const std::string& path, const std::vector<HeldTensor>& tensors,
                          std::span<const int64_t> coordinates, Communicator* communicator);

}  // namespace partita::runtime
