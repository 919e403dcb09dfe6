// What docs/command_line.md says of exit codes is what programs end with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "base/exit_code.h"
#include "tests/support/carried_model.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ExitCodes, AreThoseOfTheDocuments) {
  const std::string text = TempFolder::read(std::string(PARTITA_TEST_DATA) + "/../../docs/command_line.md"),
                    help = run_partita("--help").text;
  for (const ExitMeaning& m : kExitCodes) {
    const std::string begin = cat("\n| ", static_cast<int>(m.code), " | ");
    const size_t at = text.find(begin);
    ASSERT_NE(at, std::string::npos) << begin;
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    EXPECT_EQ(line.find("yes") != std::string::npos, m.retry) << line;
    EXPECT_THAT(line, HasSubstr(std::string(m.meaning.substr(0, 4)))) << line;
    EXPECT_THAT(help, HasSubstr(cat(static_cast<int>(m.code), " ", m.meaning)));
  }
}

TEST(ExitCodes, GoThereAndBack) {
  for (const ExitMeaning& m : kExitCodes) {
    EXPECT_EQ(exit_code(status_of_exit(static_cast<int>(m.code), "why")), static_cast<int>(m.code));
    EXPECT_EQ(status_of_exit(static_cast<int>(m.code), "why").code(), m.status);
    EXPECT_EQ(worth_retry(static_cast<int>(m.code)), m.retry);
  }
  EXPECT_EQ(status_of_exit(137, "why").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(exit_code(absl::NotFoundError("no file")), 2);
  EXPECT_EQ(exit_code(absl::DeadlineExceededError("late")), 129);
}

// A folder that is not there, a file, and one that nobody can write into.
TEST(ExitCodes, ATemporaryFolderThatCannotBeMade_IsBadUsage) {
  const TempFolder folder;
  for (const std::string& place : {folder / "none", folder.write("file", ""), std::string("/proc")}) {
    const Outcome o = run_command("TMPDIR=" + place + " " + partita_program() + " train " + kCarriedModel +
                                  "--quiet --data " + write_text(folder));
    EXPECT_EQ(o.code, 2) << o.text;
    EXPECT_THAT(o.text, AllOf(HasSubstr("cannot make a folder for the bundle in '" + place + "': "),
                              HasSubstr("; set TMPDIR to a folder that can be written")));
  }
}

TEST(ExitCodes, AResultThatCannotBeWritten_DoesNotFit) {
  for (const std::string& command :
       {std::string("--version"), std::string("--help"), "train " + kCarriedModel + "--print-config"}) {
    const Outcome o = run_partita(command + " > /dev/full");
    EXPECT_EQ(o.code, 3) << command;
    EXPECT_THAT(o.text, HasSubstr("partita: cannot write to standard output")) << command;
  }
}

TEST(ExitCodes, NumbersOutOfRange_AreToldInWords) {
  const std::string run = "run none --data none ";
  EXPECT_THAT(run_partita(run + "--steps -1").text, HasSubstr("--steps '-1': expected 0 or more\n"));
  EXPECT_THAT(run_partita(run + "--every 0").text, HasSubstr("--every '0': expected a number above 0\n"));
  EXPECT_THAT(run_partita(run + "--threads 0").text, HasSubstr("--threads: Value 0 not in range 1 to 4096\n"));
  EXPECT_EQ(run_partita(run + "--steps -1").code, 2);
  EXPECT_THAT(run_partita(run + "--keep 2").text, HasSubstr("--keep requires --checkpoint"));
}

TEST(ExitCodes, ALimitOnTheSizeOfFiles_IsAFullDisk) {
  const TempFolder folder;
  const std::string bundle = folder / "bundle", compile = "compile " + kCarriedModel + "--quiet -o " + bundle;
  const Outcome full = run_command("ulimit -f 2000; " + partita_program() + " " + compile);  // less than the runner
  EXPECT_EQ(full.code, 3) << full.text;
  EXPECT_THAT(full.text, HasSubstr("File too large"));
  ASSERT_EQ(run_partita(compile).code, 0);
  const std::string flags = " --threads 1 --quiet --steps 1 --data " + write_text(folder) + " --checkpoint ";
  for (const std::string& program : {partita_program() + " run " + bundle, bundle + "/rank"}) {
    const Outcome o = run_command("ulimit -f 100; " + program + flags + (folder / "ckpt"));
    EXPECT_EQ(o.code, 3) << o.text;
    EXPECT_THAT(o.text, HasSubstr("File too large"));
  }
}

}  // namespace
}  // namespace partita
