#include "gtest/gtest.h"
#include "runtime/data/data_source.h"
#include "runtime/files/npz.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

// Files are told apart by parts of them, wherever they lie.
TEST(Fingerprint, IsOfTheContent) {
  const TempFolder folder, other;
  auto of = [](const std::string& path) {
    const std::vector<InputSpec> inputs = {{"input_ids", DType::kI64, {8}}};
    const auto source = DataSource::open({.kind = DataKind::kTokens, .path = path, .dtype = DType::kU8}, inputs, 1);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? (*source)->fingerprint() : "";
  };
  std::string large(1 << 20, 'a'), changed = large;
  changed.back() = 'b';
  const std::string first = of(folder.write("ids.bin", large));
  EXPECT_EQ(first, of(other.write("copy.bin", large)));
  EXPECT_NE(first, of(folder.write("changed.bin", changed)));
  EXPECT_NE(first, of(folder.write("short.bin", large.substr(8))));
}

// Some plans take an array for two inputs; the data are the same.
TEST(Fingerprint, TakesAnArrayOnce) {
  const TempFolder folder;
  const std::vector<std::byte> values(8);
  ASSERT_TRUE(write_npz(folder / "d.npz", {{"x", DType::kI8, {8}, values}}).ok());
  const auto of = [&](const std::vector<InputSpec>& inputs, std::map<std::string, std::string> columns) {
    const auto source = DataSource::open({.path = folder / "d.npz", .columns = std::move(columns)}, inputs, 1);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? (*source)->fingerprint() : "";
  };
  EXPECT_EQ(of({{"x", DType::kI8, {}}}, {}), of({{"x", DType::kI8, {}}, {"again", DType::kI8, {}}}, {{"again", "x"}}));
}

}  // namespace
}  // namespace partita::runtime
