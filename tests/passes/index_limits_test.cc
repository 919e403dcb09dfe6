#include "passes/index_limits.h"

#include "tests/passes/spelling.h"

namespace partita {
namespace {

TEST(IndexLimits, AreTheSizesThatAreLookedUp) {
  Builder b;
  ValueId ids = b.input("ids", {DType::kI64, {2, 3}}), labels = b.input("labels", {DType::kI64, {6}});
  ValueId free = b.input("free", {DType::kI64, {6}}), narrow = b.input("narrow", {DType::kI32, {6}});
  auto state = [&](const char* name, Shape shape) {
    return b.state({.name = name, .parameter = {}, .initial = {}}, {DType::kF64, std::move(shape)});
  };
  ValueId table = state("table", {11, 4}), small = b.scale(state("small", {7, 4}), 2);
  ValueId x = b.reshape(b.emit("gather", {table, ids}, {{"dim", int64_t{0}}}), {6, 4});
  x = b.add(x, b.emit("gather", {table, b.cast(narrow, DType::kI64)}, {{"dim", int64_t{0}}}));
  x = b.add(x, b.emit("gather", {small, b.reshape(ids, {6})}, {{"dim", int64_t{0}}}));
  b.output("loss", b.emit_all("cross_entropy", {x, labels})[0]);
  b.output("free", b.cast(free, DType::kF64));
  // A label outside the classes has a meaning of its own: it does not count.
  Graph g = std::move(b).finish();
  EXPECT_EQ(index_limits(g), (std::map<std::string, int64_t>{{"ids", 7}, {"narrow", 11}}));
}

}  // namespace
}  // namespace partita
