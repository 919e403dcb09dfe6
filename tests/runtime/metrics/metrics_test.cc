#include "runtime/metrics/metrics.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics sample() {
  StepMetrics m;
  m.step = 11;
  m.seconds = 0.25;
  m.loss = 1.0 / 3;
  m.lr = 1e-3;
  m.grad_norm = 2.5;
  m.tokens_per_second = 123456;
  m.mfu = 0.41;
  m.input_stall_seconds = 0.025;
  m.memory_bytes = int64_t{3} << 30;
  return m;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    out.push_back(text.substr(at, end - at));
  }
  return out;
}

TEST(JsonLines, KeepsEveryDigitAndWritesNullForNan) {
  const TempFolder folder;
  auto sink = make_json_lines_sink(folder / "m.jsonl");
  ASSERT_TRUE(sink.ok()) << sink.status();
  StepMetrics m = sample();
  m.extra = {{"expert \"load\"", 0.5}};
  ASSERT_TRUE((*sink)->write(m).ok());
  m.step = 12;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.skipped = true;
  ASSERT_TRUE((*sink)->write(m).ok());
  ASSERT_TRUE((*sink)->write({}).ok());
  // Read before closing: each line is there at once.
  const std::vector<std::string> text = lines(TempFolder::read(folder / "m.jsonl"));
  ASSERT_EQ(text.size(), 3u);
  const nlohmann::json first = nlohmann::json::parse(text[0]), second = nlohmann::json::parse(text[1]),
                       third = nlohmann::json::parse(text[2]);
  EXPECT_EQ(first["step"], 11);
  EXPECT_EQ(first["loss"].get<double>(), 1.0 / 3);
  EXPECT_EQ(first["memory_bytes"], int64_t{3} << 30);
  EXPECT_EQ(first["skipped"], false);
  EXPECT_EQ(first["expert \"load\""], 0.5);
  EXPECT_FALSE(first.contains("loss_scale"));
  EXPECT_TRUE(second["loss"].is_null() && second["grad_norm"].is_null());
  EXPECT_EQ(second["skipped"], true);
  EXPECT_TRUE(third.contains("loss") && third.contains("grad_norm") && third["loss"].is_null());
}

TEST(JsonLines, AppendsOnlyWhenAsked) {
  const TempFolder folder;
  for (const bool append : {false, true, true}) {
    auto sink = make_json_lines_sink(folder / "m.jsonl", append);
    ASSERT_TRUE((*sink)->write(sample()).ok());
  }
  EXPECT_EQ(lines(TempFolder::read(folder / "m.jsonl")).size(), 3u);
  ASSERT_TRUE(make_json_lines_sink(folder / "m.jsonl").ok());
  EXPECT_EQ(TempFolder::read(folder / "m.jsonl"), "");
}

TEST(Csv, OneHeaderAlsoAfterResuming) {
  const TempFolder folder;
  for (const bool append : {false, true}) {
    auto sink = make_csv_sink(folder / "m.csv", append);
    ASSERT_TRUE((*sink)->write(sample()).ok());
  }
  const std::vector<std::string> text = lines(TempFolder::read(folder / "m.csv"));
  ASSERT_EQ(text.size(), 3u);
  EXPECT_EQ(text[0],
            "step,loss,lr,grad_norm,seconds,samples_per_second,tokens_per_second,flops_per_second,mfu,dollars,"
            "input_stall_seconds,communication_stall_seconds,checkpoint_stall_seconds,memory_bytes,"
            "loss_scale,evaluation_loss,length,padding,skipped");
  EXPECT_EQ(text[1], "11,0.3333333333333333,0.001,2.5,0.25,,123456,,0.41,,0.025,,,3221225472,,,,,0");
  EXPECT_EQ(text[1], text[2]);
}

TEST(Csv, GoesOnByTheNamesOfTheFile) {
  const TempFolder folder;
  StepMetrics m = sample();
  m.named = {{"accuracy", 0.5}, {"other", 0.25}};
  ASSERT_TRUE((*make_csv_sink(folder / "m.csv"))->write(m).ok());
  m.named = {{"other", 0.25}, {"accuracy", 0.5}};
  ASSERT_TRUE((*make_csv_sink(folder / "m.csv", true))->write(m).ok());
  m.named = {{"third", 1}, {"accuracy", 0.5}};
  const absl::Status refused = (*make_csv_sink(folder / "m.csv", true))->write(m);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(refused.message()),
      testing::AllOf(HasSubstr("m.csv"), HasSubstr("'other' is in the file alone, 'third' is in the run alone")));
  const std::vector<std::string> text = lines(TempFolder::read(folder / "m.csv"));
  ASSERT_EQ(text.size(), 3u);
  EXPECT_EQ(text[1], text[2]);
}

TEST(Metrics, TornLastLineGoes_WhereTheFileIsGoneOnWith) {
  const TempFolder folder;
  for (const char* name : {"m.jsonl", "m.csv"}) {
    const std::string path = folder / name;
    ASSERT_TRUE((*open_metrics_sink(path))->write(sample()).ok());
    const std::string whole = TempFolder::read(path);
    folder.write(name, whole + whole.substr(0, 20));
    ASSERT_TRUE(open_metrics_sink(path, true).ok());
    EXPECT_EQ(TempFolder::read(path), whole);
    folder.write(name, whole.substr(0, 20));
    ASSERT_TRUE((*open_metrics_sink(path, true))->write(sample()).ok());
    EXPECT_EQ(TempFolder::read(path), whole);
  }
}

TEST(Prometheus, FileHoldsTheLastStepAtClose) {
  const TempFolder folder;
  auto sink = make_prometheus_sink(folder / "m.prom", {{"run", "a \"b\"\n"}}, 1000);
  ASSERT_TRUE(sink.ok()) << sink.status();
  StepMetrics m = sample();
  for (m.step = 0; m.step < 5; ++m.step) ASSERT_TRUE((*sink)->write(m).ok());
  EXPECT_THAT(TempFolder::read(folder / "m.prom"), HasSubstr("partita_step{run=\"a \\\"b\\\"\\n\"} 0\n"));
  m.loss = std::numeric_limits<double>::infinity();
  ASSERT_TRUE((*sink)->write(m).ok());
  ASSERT_TRUE((*sink)->close().ok());
  const std::string text = TempFolder::read(folder / "m.prom");
  EXPECT_THAT(text, HasSubstr("partita_step{run=\"a \\\"b\\\"\\n\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE partita_loss gauge\npartita_loss{run=\"a \\\"b\\\"\\n\"} +Inf\n"));
  EXPECT_EQ(folder.files(), 1u);
  EXPECT_FALSE(make_prometheus_sink(folder / "m.prom", {{"9x", "y"}}).ok());
}

// Splits an event file into its records, checking both checksums of each.
std::vector<std::string> records(const std::string& text) {
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = crc32c(as_byte_span(bytes));
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::vector<std::string> out;
  size_t at = 0;
  while (at + 12 <= text.size()) {
    uint64_t length;
    uint32_t length_crc, crc;
    std::memcpy(&length, text.data() + at, 8);
    std::memcpy(&length_crc, text.data() + at + 8, 4);
    EXPECT_EQ(length_crc, masked(std::string_view(text).substr(at, 8)));
    if (at + 16 + length > text.size()) break;
    out.push_back(text.substr(at + 12, length));
    std::memcpy(&crc, text.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, masked(out.back()));
    at += 16 + length;
  }
  EXPECT_EQ(at, text.size());
  return out;
}

TEST(TensorBoard, RecordsFrameEvents) {
  const TempFolder folder;
  for (int run = 0; run < 2; ++run) {
    auto sink = make_tensorboard_sink(folder / "a/b");
    ASSERT_TRUE(sink.ok()) << sink.status();
    StepMetrics m = sample();
    m.step = 300;
    ASSERT_TRUE((*sink)->write(m).ok());
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "a/b")) files.push_back(entry.path().string());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_THAT(files[0], HasSubstr("/events.out.tfevents."));
  const std::vector<std::string> events = records(TempFolder::read(files[0]));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_THAT(events[0], HasSubstr("\x1a\x0d"
                                   "brain.Event:2"));
  EXPECT_EQ(events[1][0], '\x09');                    // wall_time: field 1, 64 bits
  EXPECT_EQ(events[1].substr(9, 3), "\x10\xac\x02");  // step: field 2, 300
  float loss = 1.0f / 3;
  EXPECT_THAT(events[1],
              HasSubstr("\x0a\x11\x0a\x0atrain/loss\x15" + std::string(reinterpret_cast<const char*>(&loss), 4)));
}

std::string console(const ConsoleOptions& options, int64_t steps) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  auto sink = make_console_sink(out, options);
  StepMetrics m = sample();
  for (m.step = 0; m.step < steps; ++m.step) EXPECT_TRUE(sink->write(m).ok());
  EXPECT_TRUE(sink->close().ok());
  std::fclose(out);
  std::string shown(text, size);
  ::free(text);
  return shown;
}

TEST(Console, LineHoldsWhatMatters) {
  EXPECT_EQ(console_line(sample(), 100),
            "step 12/100  loss 0.3333  lr 0.001  grad 2.5  250.0 ms  123k tok/s  mfu 41.0%  input wait 10%  3.00 GiB");
  StepMetrics m;
  m.seconds = 3700;
  m.skipped = true;
  m.loss = -std::nan("");  // as a sum that overflowed has it
  EXPECT_EQ(console_line(m, 0), "step 1  loss nan  1:01:40  (update skipped)");
}

TEST(Console, PlainLinesFirstEveryAndLast) {
  const std::vector<std::string> text = lines(console({.total_steps = 10, .every = 4}, 10));
  ASSERT_EQ(text.size(), 4u);
  for (const std::string& line : text) EXPECT_THAT(line, Not(HasSubstr("\x1b"))) << line;
  EXPECT_EQ(text[0].rfind("step 1/10 ", 0), 0u);
  EXPECT_THAT(text[1], HasSubstr("step 4/10 "));
  EXPECT_THAT(text[3], HasSubstr("step 10/10 "));
}

TEST(Console, ABarDrawsOverOneLine) {
  const std::string text = console({.bar = true, .total_steps = 3}, 3);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 3);
  EXPECT_EQ(lines(text).size(), 1u);
  EXPECT_THAT(text, HasSubstr("██████▋               33 %  step 1/3  loss 0.3333  123k tok/s  ETA 500.0 ms  lr 0.001"));
  EXPECT_THAT(text, HasSubstr("████████████████████ 100 %  step 3/3"));
  EXPECT_THAT(console({.bar = true}, 1), HasSubstr("\x1b[?7lstep 1  loss"));  // no end, no bar
  EXPECT_EQ(console({.bar = true, .quiet = true}, 3), "");
}

TEST(Metrics, SinkIsChosenByPathAndErrorsNameIt) {
  const TempFolder folder;
  for (const char* name : {"a.csv", "a.jsonl", "a.prom", "events/"})
    EXPECT_TRUE(open_metrics_sink(folder / name).ok()) << name;
  EXPECT_TRUE(open_metrics_sink(folder / "events").ok());
  EXPECT_THAT(std::string(open_metrics_sink(folder / "a.xyz").status().message()), HasSubstr("expected .csv, .jsonl"));
  EXPECT_EQ(open_metrics_sink(folder / "no/a.csv").status().code(), absl::StatusCode::kNotFound);
}

TEST(Metrics, FullDiskIsTold_AndTheOthersGoOn) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  MetricsFanOut all;
  all.add(*make_json_lines_sink("/dev/full", true));
  const TempFolder folder;
  all.add(*make_csv_sink(folder / "a.csv"));
  testing::internal::CaptureStderr();
  for (int k = 0; k < 2; ++k) EXPECT_TRUE(all.write(sample()).ok());
  EXPECT_EQ(lines(testing::internal::GetCapturedStderr()).size(), 1u);
  EXPECT_TRUE(all.close().ok());
  EXPECT_EQ(lines(TempFolder::read(folder / "a.csv")).size(), 3u);
}

}  // namespace
}  // namespace partita::runtime
