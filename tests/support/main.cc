// The main() of every test program: Google Test's own flags, those of test_options.h, and a run of no test is a
// failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/support/test_options.h"

namespace partita {
namespace {

TestOptions options;  // NOLINT: written once, before any test

bool read_options(int argc, char** argv) {
  const char* all = std::getenv("PARTITA_TEST_ALL");
  options.all = all != nullptr && std::string_view(all) == "1";
  for (int k = 1; k < argc; ++k) {
    const std::string_view flag = argv[k];
    if (flag != "--all" && flag != "--update") {
      std::fprintf(stderr, "unknown flag '%s'; beside Google Test's there are --all and --update\n", argv[k]);
      return false;
    }
    (flag == "--all" ? options.all : options.update) = true;
  }
  return true;
}

// Appends to a file what each test took, with the programs that it ran: "SUITE.TEST seconds processor-seconds". On a
// busy machine processor seconds are what a cost can be told by (costs.txt).
class CostWriter : public testing::EmptyTestEventListener {
 public:
  explicit CostWriter(const char* path) : path_(path) {}

 private:
  static double processor_seconds() {
    double sum = 0;
    for (int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage used{};
      getrusage(who, &used);
      for (const timeval& t : {used.ru_utime, used.ru_stime})
        sum += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
    return sum;
  }
  void start() { begin_ = std::chrono::steady_clock::now(), used_ = processor_seconds(); }
  void write(const char* suite, const char* test) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    if (std::FILE* file = std::fopen(path_, "a")) {
      std::fprintf(file, "%s.%s %.3f %.3f\n", suite, test, took.count(), processor_seconds() - used_);
      std::fclose(file);
    }
    start();
  }
  // What a suite sets up for all its tests counts with the first of them.
  void OnTestSuiteStart(const testing::TestSuite&) override { start(); }
  void OnTestEnd(const testing::TestInfo& test) override { write(test.test_suite_name(), test.name()); }

  const char* path_;
  std::chrono::steady_clock::time_point begin_;
  double used_ = 0;
};

}  // namespace

const TestOptions& test_options() { return options; }

}  // namespace partita

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (!partita::read_options(argc, argv)) return 2;
  if (const char* path = std::getenv("PARTITA_TEST_COSTS"))
    testing::UnitTest::GetInstance()->listeners().Append(new partita::CostWriter(path));  // which takes it
  const int result = RUN_ALL_TESTS();
  if (testing::UnitTest::GetInstance()->test_to_run_count() > 0) return result;
  std::fprintf(stderr, "no test to run: the program has none, or the filter matches none\n");
  return 1;
}
