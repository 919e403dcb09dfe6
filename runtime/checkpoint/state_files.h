// A program's tensors from and to safetensors files of whole logical tensors: each rank reads and writes its own boxes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/program.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

// A tensor of the program as this rank holds it.
struct HeldTensor {
  std::string name;  // in the file
  DType dtype = DType::kF32;
  const Placement* placement = nullptr;
  std::span<std::byte> memory;
};

// Where states get their first values from.
struct FirstValues {
  std::shared_ptr<const SafetensorsFile> file;  // whole logical tensors; null: there is none
  uint64_t seed = 0;                            // of what is drawn
  int threads = 1;                              // that hash a sealed file ahead of what is read, and that draw
};

// Begins to hash what this rank will read of a sealed file of first values, on threads of its own, while who will read
// it makes room; null where there is nothing to hash. The file outlives it.
std::unique_ptr<CheckAhead> check_first_values(const Program& program, std::span<const int64_t> coordinates,
                                               const FirstValues& first);

// Puts every state to its first value: from the file by its boxes, filled, or drawn by global element index (so that
// every plan starts equal). NotFound, InvalidArgument where the file lacks a tensor or has another shape; DataLoss
// where it is sealed and damaged.
absl::Status initialize_states(const Program& program, std::span<const int64_t> coordinates, const FirstValues& first,
                               const std::function<std::span<std::byte>(const Operand&)>& memory);

// Writes one file from all ranks. A part that several ranks hold is written by one. Collective: every rank of the
// communicator (null: one rank) calls it. `recorder` (may be null) is told how it gets on.
absl::Status save_tensors(const std::string& path, const std::vector<HeldTensor>& tensors,
                          std::span<const int64_t> coordinates, Communicator* communicator,
                          FlightRecorder* recorder = nullptr);

}  // namespace partita::runtime
