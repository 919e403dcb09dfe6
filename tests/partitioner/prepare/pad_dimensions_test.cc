// Which dimensions are padded. That nothing else changes by it is part of the property test.
#include "partitioner/prepare/pad_dimensions.h"

#include <gtest/gtest.h>

#include <map>

#include "partitioner/prepare/split_forms.h"
#include "tests/partitioner/support/random_model.h"

namespace partita {
namespace {

constexpr int kMlpWithGelu = 2, kNorm = 0;
const auto kAll = [](const State&, int) { return true; };

PaddedGraph padded(const RandomModel& model, int64_t parts) {
  Graph graph = use_split_forms(training_graph(model), [](const Node&) { return true; }).graph;
  return pad_dimensions(graph, {.parts = parts, .is_split = kAll});
}

// Shapes of the states that are longer than they were, by name.
std::map<std::string, Shape> longer_states(const PaddedGraph& p) {
  std::map<std::string, Shape> out;
  for (size_t k = 0; k < p.logical.size(); ++k) {
    const State& s = p.graph.states[k];
    if (p.graph.type(s.value).shape != p.logical[k]) out[s.name] = p.graph.type(s.value).shape;
  }
  return out;
}

TEST(PadDimensions_OfAVocabulary, TakesHeadEmbeddingAndTheirStates) {
  // One layer: the embedding is the head too.
  PaddedGraph tied = padded({.layers = {kNorm}, .optimizer = 2, .clip = true, .classes = 7}, 4);
  std::map<std::string, Shape> expected;
  for (const char* name : {"w0", "optimizer/w0/exp_avg", "optimizer/w0/exp_avg_sq"}) expected[name] = {8, 8};
  EXPECT_EQ(longer_states(tied), expected);
  PaddedGraph untied = padded({.layers = {kNorm, kNorm}, .optimizer = 0, .classes = 5}, 2);
  EXPECT_EQ(longer_states(untied), (std::map<std::string, Shape>{{"w0", {6, 8}}, {"w5", {8, 6}}}));
  for (size_t k = 0; k < untied.graph.outputs.size(); ++k) {  // gradients too are as they were
    Graph before = training_graph({.layers = {kNorm, kNorm}, .optimizer = 0, .classes = 5});
    EXPECT_EQ(untied.graph.type(untied.graph.outputs[k].value), before.type(before.outputs[k].value));
  }
}

TEST(PadDimensions_OfHiddenFeatures, TakesBothMatricesAndTheBias) {
  PaddedGraph p = padded({.layers = {kMlpWithGelu}, .optimizer = 0, .hidden = 15}, 2);
  EXPECT_EQ(longer_states(p), (std::map<std::string, Shape>{{"w1", {16}}, {"w2", {8, 16}}, {"w4", {16, 8}}}));
}

TEST(PadDimensions_WhereDataHasTheDimension, LeavesIt) {
  RandomModel model{.layers = {kNorm, kNorm}, .optimizer = 0, .squared = true, .classes = 7};  // targets for each class
  EXPECT_EQ(longer_states(padded(model, 2)), (std::map<std::string, Shape>{{"w0", {8, 8}}}));
}

TEST(PadDimensions_OfWhatDivides, ChangesNothing) {
  PaddedGraph p = padded({.layers = {kMlpWithGelu}}, 4);
  EXPECT_TRUE(p.logical.empty());
  EXPECT_EQ(p.now.size(), p.graph.values.size());
}

TEST(PadDimensions_OfAVocabularyThatIsKeptWhole, LeavesIt) {
  PaddedGraph p = pad_dimensions(training_graph({.layers = {kNorm}, .classes = 7}), {.parts = 2, .is_split = kAll});
  EXPECT_TRUE(p.logical.empty());
}

// Rows of 16 bytes, of f64: two elements. Lookups go on in their own form.
std::map<std::string, Shape> with_aligned_rows(const RandomModel& model, int64_t parts = 1) {
  Graph graph = use_split_forms(training_graph(model), [](const Node& n) { return n.op->lengthened == nullptr; }).graph;
  return longer_states(pad_dimensions(graph, {.parts = parts, .is_split = kAll, .row_bytes = 32}));
}

TEST(PadDimensions_OfUnalignedRows, TakesWhatAProductHasAsRows) {
  std::map<std::string, Shape> tied;
  for (const char* name : {"w0", "optimizer/w0/exp_avg", "optimizer/w0/exp_avg_sq"}) tied[name] = {132, 8};
  EXPECT_EQ(with_aligned_rows({.layers = {kNorm}, .optimizer = 2, .clip = true, .classes = 129}), tied);
  // The head, and not the table that is only looked up.
  EXPECT_EQ(with_aligned_rows({.layers = {kNorm, kNorm}, .optimizer = 0, .classes = 129}),
            (std::map<std::string, Shape>{{"w5", {8, 132}}}));
}

TEST(PadDimensions_OfUnalignedRows, IsCheap) {
  const auto head = [](int64_t classes, int64_t parts = 1) {
    const auto longer = with_aligned_rows({.layers = {kNorm, kNorm}, .optimizer = 0, .classes = classes}, parts);
    auto at = longer.find("w5");
    return at == longer.end() ? classes : at->second[1];
  };
  EXPECT_EQ(head(130), 130);     // a multiple of 16 bytes already
  EXPECT_EQ(head(93), 94);       // 96 would be more than a 32nd longer
  EXPECT_EQ(head(31), 31);       // and so would 32
  EXPECT_EQ(head(127, 2), 128);  // for each of two ranks
  EXPECT_EQ(head(61, 2), 62);    // which have to divide it in any case
}

}  // namespace
}  // namespace partita
