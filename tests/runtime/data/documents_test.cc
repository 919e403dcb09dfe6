// Documents, packing, Megatron's files, and sources with weights.
#include <cstring>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/data_config_json.h"
#include "runtime/data/data_source.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<InputSpec>& inputs() {
  static const std::vector<InputSpec> kInputs = {{"input_ids", DType::kI64, {4}},
                                                 {"target", DType::kI64, {4}},
                                                 {"position_ids", DType::kI64, {4}},
                                                 {"documents", DType::kI64, {4}}};
  return kInputs;
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<int64_t> column(const DataSource& source, int64_t sample, int input) {
  std::vector<int64_t> out(4);
  const absl::Status status = source.fetch(sample, 0, 1, input, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

class DocumentData : public ::testing::Test {
 protected:
  DataConfig config(DocumentMode documents) {
    DataConfig c{
        .kind = DataKind::kTokens,
        .path = folder_.write("a.u8", "\5\6" + std::string(1, '\0') + "\7\10\11" + std::string(1, '\0') + "\3\2")};
    c.columns["documents"] = "documents";
    c.documents = documents;
    c.end_of_document = 0;
    c.pad_token = 1;
    return c;
  }
  std::unique_ptr<DataSource> open(const DataConfig& c) {
    auto source = DataSource::open(c, inputs(), 1);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? *std::move(source) : nullptr;
  }
  TempFolder folder_;
};

// 5 6 0 | 7 8 9 0 | 3 2
TEST_F(DocumentData, Separate_KeepsWindowsAndCutsLabels) {
  auto source = open(config(DocumentMode::kSeparate));
  ASSERT_EQ(source->samples_per_epoch(), 2);
  EXPECT_THAT(column(*source, 0, 0), ElementsAre(5, 6, 0, 7));
  EXPECT_THAT(column(*source, 0, 1), ElementsAre(6, 0, -100, 8));
  EXPECT_THAT(column(*source, 0, 2), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(column(*source, 0, 3), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(column(*source, 1, 0), ElementsAre(8, 9, 0, 3));
  EXPECT_THAT(column(*source, 1, 1), ElementsAre(9, 0, -100, 2));
}

TEST_F(DocumentData, Pad_GivesEachDocumentAWindow) {
  auto source = open(config(DocumentMode::kPad));
  ASSERT_EQ(source->samples_per_epoch(), 3);
  EXPECT_THAT(column(*source, 0, 0), ElementsAre(5, 6, 0, 1));
  EXPECT_THAT(column(*source, 0, 1), ElementsAre(6, 0, -100, -100));
  EXPECT_THAT(column(*source, 1, 0), ElementsAre(7, 8, 9, 0));
  EXPECT_THAT(column(*source, 2, 0), ElementsAre(3, 2, 1, 1));
  EXPECT_THAT(column(*source, 2, 1), ElementsAre(2, -100, -100, -100));
  EXPECT_THAT(column(*source, 2, 3), ElementsAre(0, 0, 1, 1));  // padding is of no document
  EXPECT_THAT(std::string(DataSource::open(config(DocumentMode::kJoin), inputs(), 1).status().message()),
              HasSubstr("'documents': windows that join documents have no numbers"));
}

TEST_F(DocumentData, LabelsThatTheModelShifts_AreIgnoredWhereADocumentBegins) {
  DataConfig c = config(DocumentMode::kSeparate);
  c.shift = false;
  auto source = open(c);
  EXPECT_THAT(column(*source, 0, 1), ElementsAre(-100, 6, 0, -100));
}

// Whatever the documents: packed windows hold each token once, in order, whole documents where they fit.
TEST_F(DocumentData, Pack_HoldsEveryTokenOnce) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::string tokens;
    std::vector<int64_t> lengths;
    for (int d = 0; d < 12; ++d) {
      const int n = 1 + static_cast<int>(random() % 7);
      lengths.push_back(n);
      for (int k = 1; k < n; ++k) tokens += static_cast<char>(2 + random() % 100);
      tokens += '\0';
    }
    DataConfig c = config(DocumentMode::kPack);
    c.path = folder_.write("p.u8", tokens);
    auto source = open(c);
    std::string joined;
    std::vector<int64_t> parts(lengths.size(), 0);
    size_t document = 0;
    int64_t left = lengths[0];
    for (int64_t s = 0; s < source->samples_per_epoch(); ++s) {
      const auto ids = column(*source, s, 0), positions = column(*source, s, 2);
      size_t seen = document == lengths.size() ? 0 : document;
      for (size_t k = 0; k < 4; ++k) {
        if (ids[k] == 1) break;  // padding
        joined += static_cast<char>(ids[k]);
        if (positions[k] == 0) ++parts[seen];
        if (--left == 0 && ++document < lengths.size()) left = lengths[document];
        seen = std::min(document, lengths.size() - 1);
      }
    }
    EXPECT_EQ(joined, tokens);
    for (size_t d = 0; d < lengths.size(); ++d) EXPECT_EQ(parts[d], (lengths[d] + 3) / 4) << trial << " document " << d;
  }
}

TEST_F(DocumentData, WithoutAnEnd_SaysWhatToGive) {
  DataConfig c = config(DocumentMode::kPack);
  c.end_of_document.reset();
  EXPECT_THAT(std::string(DataSource::open(c, inputs(), 1).status().message()), HasSubstr("end_of_document"));
}

// Three sequences of 3, 4 and 2 tokens, the first two of one document.
std::string megatron_index(uint8_t code = 8, int64_t size = 2) {
  std::string s("MMIDIDX\0\0", 9);
  s += raw<uint64_t>({1}) + static_cast<char>(code) + raw<uint64_t>({3, 3}) + raw<int32_t>({3, 4, 2}) +
       raw<int64_t>({0, 3 * size, 7 * size}) + raw<int64_t>({0, 2, 3});
  return s;
}

TEST_F(DocumentData, Megatron_IsReadWithItsDocuments) {
  folder_.write("m.idx", megatron_index());
  DataConfig c = config(DocumentMode::kPad);
  c.path = folder_.write("m.bin", raw<uint16_t>({5, 6, 300, 7, 8, 9, 10, 3, 2}));
  c.end_of_document.reset();
  auto source = open(c);
  ASSERT_EQ(source->samples_per_epoch(), 3);  // 7 tokens in two windows, then 2
  EXPECT_THAT(column(*source, 0, 0), ElementsAre(5, 6, 300, 7));
  EXPECT_THAT(column(*source, 1, 0), ElementsAre(8, 9, 10, 1));
  EXPECT_THAT(column(*source, 2, 0), ElementsAre(3, 2, 1, 1));
  DataConfig joined{.kind = DataKind::kTokens, .path = folder_ / "m.idx"};
  auto plain = DataSource::open(joined, {{"input_ids", DType::kI64, {4}}}, 1);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(column(**plain, 1, 0), ElementsAre(8, 9, 10, 3));
}

TEST_F(DocumentData, DamagedIndices_AreRefused) {
  folder_.write("m.bin", raw<uint16_t>({5, 6, 300, 7, 8, 9, 10, 3, 2}));
  DataConfig c{.kind = DataKind::kTokens, .path = folder_ / "m.idx"};
  const std::vector<InputSpec> one = {{"input_ids", DType::kI64, {4}}};
  const std::string good = megatron_index();
  for (size_t size = 0; size < good.size(); ++size) {
    folder_.write("m.idx", good.substr(0, size));
    EXPECT_FALSE(DataSource::open(c, one, 1).ok()) << size;
  }
  std::mt19937 random(3);
  for (int k = 0; k < 500; ++k) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    folder_.write("m.idx", bad);
    auto source = DataSource::open(c, one, 1);
    if (source.ok()) column(**source, 0, 0);
  }
  folder_.write("m.idx", megatron_index(8, 3));
  EXPECT_EQ(DataSource::open(c, one, 1).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(DocumentData, Mix_KeepsTheWeights_AndAnyPositionIsFoundAtOnce) {
  const std::vector<InputSpec> one = {{"input_ids", DType::kI64, {1}}};
  std::string a(30, 'a'), b(50, 'b');
  DataConfig c;
  c.sources = {{{.kind = DataKind::kTokens, .path = folder_.write("a.txt", a)}, 3},
               {{.kind = DataKind::kTokens, .path = folder_.write("b.txt", b)}, 1}};
  c.epochs = 0;
  auto source = DataSource::open(c, one, 1);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->samples_per_epoch(), 80);
  std::map<int64_t, int> seen;
  std::vector<int64_t> order;
  for (int64_t s = 0; s < 80; ++s) {
    int64_t id = 0;
    ASSERT_TRUE((*source)->fetch(s, 0, 1, 0, std::as_writable_bytes(std::span(&id, 1))).ok());
    ++seen[id];
    order.push_back(id);
  }
  EXPECT_EQ(seen['a'], 60);
  EXPECT_EQ(seen['b'], 20);
  // Never far from the weights on the way.
  int count = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    count += order[k] == 'a';
    EXPECT_NEAR(count, 0.75 * static_cast<double>(k + 1), 1.01) << k;
  }
  int64_t id = 0;
  ASSERT_TRUE((*source)->fetch(57, 0, 1, 0, std::as_writable_bytes(std::span(&id, 1))).ok());
  EXPECT_EQ(id, order[57]);
  c.sources[1].weight = 1e-4;  // less than can be dealt out
  EXPECT_THAT((*DataSource::open(c, one, 1))->told(),
              testing::Contains(HasSubstr("b.txt': 1 of 1024 samples; by its weight 0.034")));
}

// What an epoch leaves of a source comes in the next one, in whatever order an epoch's samples are.
TEST_F(DocumentData, Mix_UsesUpASourceOfLittleWeight) {
  const std::vector<InputSpec> one = {{"input_ids", DType::kI64, {1}}};
  std::string a, b;
  for (int k = 0; k < 50; ++k) (k < 20 ? a : b) += static_cast<char>(k);
  DataConfig c;
  c.sources = {{{.kind = DataKind::kTokens, .path = folder_.write("a.txt", a)}, 4},
               {{.kind = DataKind::kTokens, .path = folder_.write("b.txt", b)}, 1}};
  c.epochs = 0;
  for (const bool shuffle : {false, true}) {
    c.shuffle = shuffle;
    auto source = DataSource::open(c, one, 1);
    ASSERT_TRUE(source.ok()) << source.status();
    std::map<int64_t, int> seen;
    for (int64_t s = 0; s < 3 * 50; ++s) {
      int64_t id = 0;
      ASSERT_TRUE((*source)->fetch(s, 0, 1, 0, std::as_writable_bytes(std::span(&id, 1))).ok());
      ++seen[id];
      EXPECT_THAT((*(*source)->locate(s))[0], HasSubstr(cat("sample ", id < 20 ? id : id - 20, ","))) << s;
    }
    for (int64_t id = 0; id < 20; ++id) EXPECT_EQ(seen[id], 6) << id;
    for (int64_t id = 20; id < 50; ++id) EXPECT_EQ(seen[id], 1) << id;
  }
}

TEST_F(DocumentData, BadSources_AreNamed) {
  const std::vector<InputSpec> one = {{"input_ids", DType::kI64, {4}}};
  DataConfig c, short_one{.kind = DataKind::kTokens, .path = folder_.write("a.txt", "aa")},
      missing{.kind = DataKind::kTokens, .path = folder_ / "none.txt"};
  c.sources = {{short_one, 1}};
  EXPECT_THAT(std::string(DataSource::open(c, one, 1).status().message()), HasSubstr("a.txt"));
  c.sources = {{missing, 1}};
  EXPECT_THAT(std::string(DataSource::open(c, one, 1).status().message()), HasSubstr("none.txt"));
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {R"({"sources": []})", "expected a list"},
           {R"({"sources": [{"path": "a.txt", "wieght": 1}]})", "nearest known one is"},
           {R"({"sources": [{"path": "a.txt", "weight": -1}]})", "above 0"},
           {R"({"sources": [{"sources": []}]})", "inside a source"},
           {R"({"sources": [{"path": "a.txt", "documents": "glue"}]})", "glue"},
           {R"({"sources": [{"path": 3}]})", "source 0"}}) {
    auto config = data_config_from_json(nlohmann::json::parse(text));
    EXPECT_FALSE(config.ok()) << text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(expected)) << text;
  }
}

TEST(DataConfigJson, RoundTrips) {
  DataConfig c{.kind = DataKind::kTokens, .path = "x.bin"};
  c.documents = DocumentMode::kPack;
  c.end_of_document = 7;
  c.dtype = DType::kU32;
  c.skip = 3;
  c.shift = true;
  c.prefetch = 5;
  c.sources = {{c, 2.5}};
  auto again = data_config_from_json(to_json(c));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(to_json(*again), to_json(c));
  EXPECT_EQ(again->prefetch, 5);
}

}  // namespace
}  // namespace partita::runtime
