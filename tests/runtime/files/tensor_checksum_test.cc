#include "runtime/files/tensor_checksum.h"

#include "base/box.h"
#include "base/mix64.h"
#include "gtest/gtest.h"

namespace partita::runtime {
namespace {

// By several threads, in parts, each box has the words that it has by itself.
TEST(TensorChecksum, InPartsAsWhole) {
  struct Case {
    std::vector<int64_t> shape, offset, extent;
    int64_t element_bytes;
  };
  const std::vector<Case> cases = {
      {{}, {}, {}, 8},
      {{7}, {0}, {7}, 1},
      {{0, 5}, {0, 0}, {0, 5}, 4},
      {{1, 1, 3'000'001}, {0, 0, 5}, {1, 1, 2'999'990}, 2},
      {{2048, 1536}, {3, 1}, {2000, 1500}, 4},
      {{3, 900'000, 2}, {0, 0, 0}, {3, 900'000, 2}, 8},
  };
  std::vector<std::vector<std::byte>> data;
  std::vector<ChecksumBox> boxes;
  for (const Case& c : cases) {
    std::vector<std::byte>& bytes = data.emplace_back(static_cast<size_t>(*element_count(c.extent) * c.element_bytes));
    for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<std::byte>(mix64(k));
    boxes.push_back({c.shape, c.offset, c.extent, c.element_bytes, bytes});
  }
  const std::vector<uint64_t> words = box_checksums(boxes, 3);
  ASSERT_EQ(words.size(), cases.size());
  for (size_t k = 0; k < cases.size(); ++k)
    EXPECT_EQ(words[k], box_checksum(cases[k].shape, cases[k].offset, cases[k].extent, cases[k].element_bytes, data[k]))
        << k;
  EXPECT_NE(words[0], 0u);
}

}  // namespace
}  // namespace partita::runtime
