#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/cat.h"
#include "tests/support/temp_folder.h"
#include "tools/watch/run_history.h"
#include "tools/watch/screen.h"

namespace partita {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string line(int64_t step, const std::string& loss, const std::string& more = "") {
  return cat("{\"step\": ", step, ", \"loss\": ", loss, ", \"seconds\": 0.5, \"tokens_per_second\": 12345", more,
             "}\n");
}

// Characters, of which each takes a column.
size_t width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(RunHistory, AGrowingFileIsTakenInOnce) {
  TempFolder folder;
  const std::string path = folder.write("m.jsonl", line(0, "3") + line(1, "2") + "{\"step\": 2, \"lo");
  auto source = open_run_source(folder / ".");
  ASSERT_TRUE(source.ok()) << source.status();
  RunHistory run;
  ASSERT_TRUE((*source)->read(run).ok());
  ASSERT_EQ(run.losses().size(), 2u);  // the line that is still written is none yet
  folder.write("m.jsonl", line(0, "3") + line(1, "2") + line(2, "null") + line(3, "1.5", ", \"rank_seconds\": [1, 2]"));
  ASSERT_TRUE((*source)->read(run).ok());
  ASSERT_EQ(run.losses().size(), 4u);
  EXPECT_TRUE(std::isnan(run.losses()[2].loss));
  EXPECT_EQ(run.not_finite(), 1);
  EXPECT_EQ(run.rank_seconds(), (std::vector<double>{1, 2}));
  // A resumed run takes steps again.
  folder.write("m.jsonl", line(0, "3") + line(1, "2") + line(2, "null") + line(3, "1.5", ", \"rank_seconds\": [1, 2]") +
                              line(2, "1.75"));
  ASSERT_TRUE((*source)->read(run).ok());
  ASSERT_EQ(run.losses().size(), 3u);
  EXPECT_EQ(run.losses()[2].loss, 1.75);
  EXPECT_EQ(run.not_finite(), 0);
  // Another run, from the beginning.
  folder.write("m.jsonl", line(0, "9"));
  ASSERT_TRUE((*source)->read(run).ok());
  ASSERT_EQ(run.losses().size(), 1u);
  folder.write("m.jsonl", line(0, "9") + "no line of ours, and longer than before by some\n");
  const absl::Status bad = (*source)->read(run);
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("m.jsonl':2: expected a JSON object"));
}

TEST(RunHistory, PlacesThatAreNoneAreRefused) {
  TempFolder folder;
  EXPECT_EQ(open_run_source(folder / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(open_run_source(folder / ".").status().message()), HasSubstr("expected a .jsonl file"));
  EXPECT_EQ(open_run_source("http://nowhere").status().code(), absl::StatusCode::kInvalidArgument);
  auto silent = open_run_source("http://127.0.0.1:1");
  ASSERT_TRUE(silent.ok());
  RunHistory run;
  EXPECT_EQ((*silent)->read(run).code(), absl::StatusCode::kUnavailable);
}

TEST(Screen, ShowsCurveRatesAndRanksWithinTheTerminal) {
  RunHistory run;
  for (int k = 0; k < 500; ++k)
    ASSERT_TRUE(run.add_line(line(k, cat(2 + 3 * std::exp(-k / 100.0)),
                                  ", \"communication_stall_seconds\": 0.1, \"mfu\": 0.4, \"dollars\": 1.5, "
                                  "\"rank_seconds\": [0.4, 0.41, 0.7, 0.4]"))
                    .ok());
  for (const auto& [columns, rows] : {std::pair{80, 24}, {120, 50}, {40, 12}}) {
    const std::string text = draw_run(run, "m.jsonl", "", {columns, rows}, false);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), rows) << text;
    EXPECT_THAT(text, HasSubstr("step 500   loss 2.0"));
    EXPECT_THAT(text, HasSubstr("other ranks 20 %"));
    EXPECT_THAT(text, HasSubstr("the slowest is rank 2"));
    EXPECT_THAT(text, HasSubstr("▁▁█▁"));
    EXPECT_THAT(text, HasSubstr("steps 1 to 500"));
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
      end = text.find('\n', at);
      const std::string one = text.substr(at, end - at);
      if (one.find("│") != one.npos) {
        EXPECT_LE(width(one), static_cast<size_t>(columns)) << one;
      }
    }
  }
  // It falls: its first column is high, its last is low.
  const std::string text = draw_run(run, "m.jsonl", "", {80, 24}, false);
  const size_t top = text.find("│"), bottom = text.rfind("│");
  EXPECT_NE(text.substr(top, 6), "│⠀");
  EXPECT_THAT(text.substr(bottom), Not(testing::StartsWith("│⣀")));
  EXPECT_THAT(text.substr(bottom), HasSubstr("⣀\n"));
}

TEST(Screen, OfARunThatHasNotBegun) {
  EXPECT_EQ(draw_run({}, "m.jsonl", "not there now", {}, false), "m.jsonl\nnot there now\nno step yet\n");
}

}  // namespace
}  // namespace partita
