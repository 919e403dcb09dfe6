// A checksum of a whole logical tensor that does not depend on how it is split: each element gives a 64-bit word mixed
// from its value and its number in the tensor, and the words are summed modulo 2^64. Ranks sum over the boxes they
// hold, the sums of disjoint boxes add up, and the same tensor has the same checksum under every plan.
//
// Any change of one element is found for certain (the mix is a bijection for each position), others with probability
// 1 - 2^-64. For damage, not for adversaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace partita::runtime {

// Words of the box at `offset` of extent `extent` (packed row-major in `data`, `element_bytes` each: 1, 2, 4 or 8) of a
// tensor of `shape`. The box must lie inside.
uint64_t box_checksum(std::span<const int64_t> shape, std::span<const int64_t> offset, std::span<const int64_t> extent,
                      int64_t element_bytes, std::span<const std::byte> data);

// Boxes of tensors of one or several shapes.
struct ChecksumBox {
  std::span<const int64_t> shape, offset, extent;
  int64_t element_bytes = 0;
  std::span<const std::byte> data;
};
// The words of each box, computed by so many threads, which call `got_on` (may be empty) as they get on.
std::vector<uint64_t> box_checksums(std::span<const ChecksumBox> boxes, int threads,
                                    const std::function<void()>& got_on = {});

}  // namespace partita::runtime
