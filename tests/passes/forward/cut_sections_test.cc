// Sections against all ways to cut.
#include "passes/forward/cut_sections.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace partita {
namespace {

std::vector<SectionNode> nodes(std::mt19937& rng, size_t count) {
  std::vector<SectionNode> out(count);
  for (SectionNode& node : out) {
    node.product = rng() % 2 == 0;
    node.bytes = static_cast<double>(1 + rng() % 8);
    node.open_bytes = node.bytes + static_cast<double>(rng() % 8);
  }
  return out;
}

size_t products(const std::vector<SectionNode>& nodes, size_t from, size_t end) {
  size_t n = 0;
  for (size_t k = from; k < end; ++k) n += nodes[k].product;
  return n;
}

// What is open at the ends, and of the largest section.
double bytes(const std::vector<SectionNode>& nodes, const std::vector<size_t>& ends) {
  double open = 0, largest = 0;
  size_t from = 0;
  for (size_t end : ends) {
    double made = 0;
    for (size_t k = from; k < end; ++k) made += nodes[k].bytes;
    largest = std::max(largest, made);
    if (end < nodes.size()) open += nodes[end - 1].open_bytes;
    from = end;
  }
  return open + largest;
}

double least_bytes(const std::vector<SectionNode>& nodes) {
  double least = 1e300;
  std::vector<size_t> ends;
  std::function<void(size_t)> cut = [&](size_t from) {
    if (from == nodes.size()) {
      least = std::min(least, bytes(nodes, ends));
      return;
    }
    for (size_t end = from + 1; end <= nodes.size(); ++end) {
      if (products(nodes, from, end) < 2) continue;
      ends.push_back(end);
      cut(end);
      ends.pop_back();
    }
  };
  cut(0);
  return least;
}

TEST(CutSections, AreLeastOrNearlySo) {
  std::mt19937 rng(5);
  double mine = 0, least = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<SectionNode> n = nodes(rng, 6 + rng() % 9);
    const std::vector<size_t> ends = cut_sections(n);
    if (products(n, 0, n.size()) < 4) {
      EXPECT_TRUE(ends.empty());
      continue;
    }
    ASSERT_FALSE(ends.empty());
    EXPECT_EQ(ends.back(), n.size());
    size_t from = 0;
    for (size_t end : ends) {
      EXPECT_GE(products(n, from, end), 2u);
      from = end;
    }
    const double want = least_bytes(n);
    EXPECT_GE(bytes(n, ends), want - 1e-9);
    mine += bytes(n, ends), least += want;
  }
  EXPECT_LT(mine, 1.1 * least);
}

// A chain of products of one size, each with a step behind it: some are kept, and what is behind a product rather than
// its operand.
TEST(CutSections, OfAChainEndBehindProducts) {
  std::vector<SectionNode> chain;
  for (int k = 0; k < 200; ++k) chain.push_back({k % 2 == 0, 1, 1});
  const std::vector<size_t> ends = cut_sections(chain);
  EXPECT_LT(bytes(chain, ends), 60);  // of 200
  for (size_t end : ends) EXPECT_TRUE(end == chain.size() || chain[end - 1].product) << end;
}

// Among many thousands of nodes, as networks that were searched for have them.
TEST(CutSections, AreNotManyMoreInLargeModels) {
  std::mt19937 rng(6);
  const std::vector<size_t> ends = cut_sections(nodes(rng, 20000));
  EXPECT_LE(ends.size(), 600u);
}

}  // namespace
}  // namespace partita
