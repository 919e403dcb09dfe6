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

// The same program gives the same bytes. Fails where check_program() does.
absl::StatusOr<std::string> serialize_program(const Program& program);

// DataLoss (damaged, cut short, not consistent: see check_program) or FailedPrecondition (another version). Never
// crashes on any bytes, and allocates no more than a small multiple of them.
absl::StatusOr<Program> parse_program(std::span<const std::byte> image);

// The programs of all stages of a pipeline (else one), one image after the other. `programs` are in the order of their
// stages.
absl::StatusOr<std::string> serialize_programs(const std::vector<Program>& programs);
absl::StatusOr<std::vector<Program>> parse_programs(std::span<const std::byte> images);

// Bare images, or an executable with them appended. Errors name the file; InvalidArgument when it is neither.
absl::StatusOr<std::vector<Program>> load_images(const std::string& path);

// The images with the runner in front: an executable file. A runner that already carries an image loses it. Written
// atomically.
absl::Status write_executable(const std::string& runner_path, std::span<const std::byte> image,
                              const std::string& path);

}  // namespace partita::runtime
