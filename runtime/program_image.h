// A Program as bytes and files; runtime/program.h has the layout.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/program.h"

namespace partita::runtime {

// The same program gives the same bytes. Fails where check_program() does.
absl::StatusOr<std::string> serialize_program(const Program& program);

// DataLoss (damaged, cut short, not consistent: see check_program) or FailedPrecondition (another version). Never
// crashes on any bytes, and allocates no more than a small multiple of them.
absl::StatusOr<Program> parse_program(std::span<const std::byte> image);

// A bare image, or an executable with one appended. Errors name the file; InvalidArgument when it is neither.
absl::StatusOr<Program> load_image(const std::string& path);

// The image with the runner in front: an executable file. A runner that already carries an image loses it. Written
// atomically.
absl::Status write_executable(const std::string& runner_path, std::span<const std::byte> image,
                              const std::string& path);

}  // namespace partita::runtime
