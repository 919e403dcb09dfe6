// README.md and docs: their commands run and print what they show, their links and paths lead somewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

Outcome check_documents(const std::string& pages) {
  return run_command(std::string(PARTITA_TEST_DATA) + "/../../tools/check_documents --build " PARTITA_BUILD + pages);
}

TEST(Documents, SayWhatIs) {
  const Outcome o = check_documents("");
  EXPECT_EQ(o.code, 0) << o.text;
}

// What each kind of fault is told as; a page without any passes.
TEST(Documents, StaleOnesAreTold) {
  const std::pair<const char*, const char*> faults[] = {
      {"[a page](gone.md)", "the link gone.md leads to no file"},
      {"`ir/graph/gone.h`", "there is no ir/graph/gone.h"},
      {"`gone_for"
       "_good()`",
       "nothing in the sources is called gone_for"},  // this file is a source, too
      {"`partita plan m.onnx --clutter c`", "`partita plan` has no flag --clutter"},
      {"<!-- not run: needs GPUs -->\n```sh\npartita verifi bundle\n```", "`partita verifi`: there is no such command"},
      {"<!-- not run: -->\n```sh\ntrue\n```", "for which reason?"},
      {"```sh\nfalse\n```", "left with code 1"},
      {"```sh\necho one\n```\n```text\ntwo\n```", "the command does not print: two"},
      {"```console\n$ echo one\ntwo\n```", "the command does not print: two"},
      {"    partita doctor --json", "a command in an indented block is not run"},
  };
  const TempFolder folder;
  for (const auto& [page, told] : faults) {
    const Outcome o = check_documents(" " + folder.write("page.md", std::string(page) + "\n"));
    EXPECT_EQ(o.code, 1) << page;
    EXPECT_THAT(o.text, HasSubstr(told));
  }
  EXPECT_EQ(check_documents(" " + folder.write("page.md", "```sh\necho 12 steps\n```\n```text\n7 …\n```\n")).code, 0);
}

}  // namespace
}  // namespace partita
