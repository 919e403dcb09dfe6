#include "runtime/files/tensor_checksum.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/box.h"
#include "base/mix64.h"
#include "base/status.h"
#include "runtime/files/in_parallel.h"

namespace partita::runtime {
namespace {

template <typename T>
uint64_t run_checksum(const std::byte* data, int64_t first, int64_t count) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    T value;
    std::memcpy(&value, data + k * static_cast<int64_t>(sizeof value), sizeof value);
    // An odd multiple of the position keeps the argument a bijection of the value.
    sum += mix64(static_cast<uint64_t>(value) + static_cast<uint64_t>(first + k + 1) * 0x9E3779B97F4A7C15);
  }
  return sum;
}

}  // namespace

uint64_t box_checksum(std::span<const int64_t> shape, std::span<const int64_t> offset, std::span<const int64_t> extent,
                      int64_t element_bytes, std::span<const std::byte> data) {
  uint64_t sum = 0;
  const absl::Status walked = for_each_run(shape, offset, extent, [&](int64_t at, int64_t packed, int64_t count) {
    const std::byte* run = data.data() + packed * element_bytes;
    sum += element_bytes == 8   ? run_checksum<uint64_t>(run, at, count)
           : element_bytes == 4 ? run_checksum<uint32_t>(run, at, count)
           : element_bytes == 2 ? run_checksum<uint16_t>(run, at, count)
                                : run_checksum<uint8_t>(run, at, count);
    return absl::OkStatus();
  });
  PARTITA_CHECK(walked.ok(), "runs of a box inside its tensor");
  return sum;
}

std::vector<uint64_t> box_checksums(std::span<const ChecksumBox> boxes, int threads,
                                    const std::function<void()>& got_on) {
  constexpr int64_t kChunk = 1 << 20;  // elements, about
  // A box in parts along its first dimension of more than one, so that each part is packed, too.
  struct Part {
    size_t box = 0, dimension = 0;
    int64_t first = 0, count = 0;
  };
  std::vector<Part> parts;
  for (size_t k = 0; k < boxes.size(); ++k) {
    const std::span<const int64_t> extent = boxes[k].extent;
    size_t d = 0;
    while (d + 1 < extent.size() && extent[d] == 1) ++d;
    const int64_t rows = extent.empty() ? 1 : extent[d];
    const int64_t step = std::max<int64_t>(1, rows * kChunk / std::max<int64_t>(1, *element_count(extent)));
    for (int64_t at = 0; at < rows; at += step) parts.push_back({k, d, at, std::min(step, rows - at)});
  }
  std::vector<std::atomic<uint64_t>> sums(boxes.size());
  in_parallel(threads, parts.size(), [&](size_t k) {
    const Part& part = parts[k];
    const ChecksumBox& box = boxes[part.box];
    std::vector<int64_t> offset(box.offset.begin(), box.offset.end()), extent(box.extent.begin(), box.extent.end());
    size_t row = box.data.size();
    if (!extent.empty()) {
      row /= static_cast<size_t>(extent[part.dimension]);
      offset[part.dimension] += part.first;
      extent[part.dimension] = part.count;
    }
    sums[part.box] +=
        box_checksum(box.shape, offset, extent, box.element_bytes,
                     box.data.subspan(static_cast<size_t>(part.first) * row, static_cast<size_t>(part.count) * row));
    if (got_on) got_on();
  });
  return {sums.begin(), sums.end()};
}

}  // namespace partita::runtime
