// What tells data files apart without reading all of them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace partita::runtime {

// Their number, and a SHA-256 of them; of more than a quarter of a megabyte, of parts that are spread evenly over them
// from the first to the last.
std::string fingerprint_of(std::span<const std::byte> bytes);

}  // namespace partita::runtime
