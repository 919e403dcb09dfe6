#include "runtime/data/convert.h"

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;

template <typename S, typename D>
std::vector<D> converted(DType from, DType to, const std::vector<S>& in, int64_t expected_bad = -1) {
  std::vector<D> out(in.size());
  absl::StatusOr<ConvertFunction> convert = find_conversion(from, to);
  EXPECT_TRUE(convert.ok()) << convert.status();
  if (convert.ok()) {
    EXPECT_EQ((*convert)(reinterpret_cast<const std::byte*>(in.data()), reinterpret_cast<std::byte*>(out.data()),
                         static_cast<int64_t>(in.size())),
              expected_bad);
  }
  return out;
}

TEST(Conversion, KeepsValuesOrNamesTheFirstThatIsLost) {
  EXPECT_THAT((converted<int64_t, int32_t>(DType::kI64, DType::kI32, {-5, 7, INT32_MAX})),
              ElementsAre(-5, 7, INT32_MAX));
  converted<int64_t, int32_t>(DType::kI64, DType::kI32, {1, int64_t{1} << 31}, 1);
  converted<int8_t, uint64_t>(DType::kI8, DType::kU64, {1, 2, -1}, 2);
  EXPECT_THAT((converted<uint16_t, int64_t>(DType::kU16, DType::kI64, {65535})), ElementsAre(65535));
  EXPECT_THAT((converted<uint8_t, float>(DType::kU8, DType::kF32, {0, 255})), ElementsAre(0.f, 255.f));
  EXPECT_THAT((converted<int64_t, float>(DType::kI64, DType::kF32, {1 << 24})), ElementsAre(16777216.f));
  converted<int64_t, float>(DType::kI64, DType::kF32, {0, (1 << 24) + 1}, 1);
  converted<uint64_t, double>(DType::kU64, DType::kF64, {UINT64_MAX}, 0);
  converted<int32_t, uint16_t>(DType::kI32, DType::kF16, {2048, 2049}, 1);
  converted<int32_t, uint16_t>(DType::kI32, DType::kBF16, {256, 257}, 1);
  EXPECT_THAT((converted<double, float>(DType::kF64, DType::kF32, {0.1, 1e300})),
              ElementsAre(0.1f, std::numeric_limits<float>::infinity()));
  EXPECT_THAT((converted<float, uint16_t>(DType::kF32, DType::kBF16, {1.f})), ElementsAre(0x3f80));
  EXPECT_THAT((converted<uint16_t, float>(DType::kF16, DType::kF32, {0x3c00})), ElementsAre(1.f));
  EXPECT_THAT((converted<uint8_t, uint8_t>(DType::kBool, DType::kBool, {0, 1, 200})), ElementsAre(0, 1, 1));
  converted<int64_t, uint8_t>(DType::kI64, DType::kBool, {0, 1, 2}, 2);
  EXPECT_FALSE(find_conversion(DType::kF32, DType::kI64).ok());
  EXPECT_FALSE(find_conversion(DType::kF16, DType::kBool).ok());
}

// Over more elements than are looked at in one go: of every third the given value is another one.
TEST(Conversion, TakesRoundedValuesWhereTheyDiffer) {
  const size_t count = 2500;
  std::vector<float> own(count);
  for (size_t k = 0; k < count; ++k) own[k] = 1 + 0.001f * static_cast<float>(k);
  std::vector<uint16_t> given = converted<float, uint16_t>(DType::kF32, DType::kBF16, own);
  for (size_t k = 0; k < count; k += 3) given[k] = 0x4120;  // 10
  std::vector<float> out = own;
  const auto taken = take_rounded(DType::kBF16, reinterpret_cast<const std::byte*>(given.data()), DType::kF32,
                                  reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(count));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(*taken, 834);
  for (size_t k = 0; k < count; ++k) EXPECT_EQ(out[k], k % 3 == 0 ? 10 : own[k]) << k;
}

TEST(Unusable, NamesTheFirstNaNOrInfinity) {
  const auto check = [](DType dtype, auto largest, auto infinity, auto nan, auto negative) {
    using Bits = decltype(largest);
    for (const size_t n : {1, 5, 1024, 2500}) {
      std::vector<Bits> all(n, largest);
      for (size_t k = 0; k < n; k += 2) all[k] = static_cast<Bits>(largest | negative);
      const auto found = [&](bool infinite) { return find_unusable(dtype, std::as_bytes(std::span(all)), infinite); };
      EXPECT_EQ(found(true), -1);
      for (const size_t at : {size_t{0}, n / 2, n - 1}) {
        for (const Bits bits : {infinity, nan, static_cast<Bits>(infinity | negative), static_cast<Bits>(~Bits{0})}) {
          const Bits before = std::exchange(all[at], bits);
          const auto place = static_cast<int64_t>(at);
          EXPECT_EQ(found(true), place);
          EXPECT_EQ(found(false), (bits & static_cast<Bits>(~negative)) == infinity ? -1 : place);
          all[at] = before;
        }
      }
    }
  };
  check(DType::kF64, uint64_t{0x7fefffffffffffff}, uint64_t{0x7ff0000000000000}, uint64_t{0x7ff0000000000001},
        uint64_t{1} << 63);
  check(DType::kF32, uint32_t{0x7f7fffff}, uint32_t{0x7f800000}, uint32_t{0x7f800001}, uint32_t{1} << 31);
  check(DType::kF16, uint16_t{0x7bff}, uint16_t{0x7c00}, uint16_t{0x7c01}, uint16_t{0x8000});
  check(DType::kBF16, uint16_t{0x7f7f}, uint16_t{0x7f80}, uint16_t{0x7f81}, uint16_t{0x8000});
}

}  // namespace
}  // namespace partita::runtime
