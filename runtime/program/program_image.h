// A Program as bytes and files; runtime/program/program.h has the layout.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/program/program.h"

namespace partita::runtime {

// The same program gives the same bytes. Whether it is consistent, who reads it sees.
std::string serialize_program(const Program& program);

// DataLoss (damaged, cut short, not consistent: see check_program) or FailedPrecondition (another version). Never
// crashes on any bytes, and allocates no more than a small multiple of them.
absl::StatusOr<Program> parse_program(std::span<const std::byte> image);

// The programs of all stages of a pipeline (else one), one image after the other. `programs` are in the order of their
// stages.
std::string serialize_programs(const std::vector<Program>& programs);
absl::StatusOr<std::vector<Program>> parse_programs(std::span<const std::byte> images);

}  // namespace partita::runtime
