// Manual pages and completions of a small command line; the completions are run by bash as it runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/manual/command_tree.h"
#include "tools/manual/completions.h"
#include "tools/manual/man_page.h"

namespace partita {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// tool train MODEL [--precision fp32|bf16] [-o,--output FILE] [--pin ...]; tool model gpt; tool secret (hidden)
struct Tool {
  CLI::App app{"a tool - it's one", "tool"};
  std::string model, precision, output = "out", shell;
  std::vector<std::string> pins;
  bool quiet = false;

  Tool() {
    app.footer("Exit codes: 0 fine.");
    CLI::App* train = app.add_subcommand("train", "train a model");
    train->add_option("model", model, "ONNX file")->required();
    train->add_option("--precision", precision, "of numbers")->check(CLI::IsMember({"fp32", "bf16"}));
    train->add_option("-o,--output", output, ".npz: [where] \\ it's written")->capture_default_str();
    train->add_option("--pin", pins, "KEY=VALUE");
    train->add_flag("--quiet", quiet, "say nothing");
    CLI::App* models = app.add_subcommand("model", "write a model");
    models->add_subcommand("gpt", "a transformer")->add_option("--layers", model);
    app.add_subcommand("shell", "a script")->add_option("shell", shell)->check(CLI::IsMember({"bash", "zsh"}));
    app.add_subcommand("secret", "hidden")->group("");
  }
};

TEST(CommandTree, SaysWhatOptionsTake) {
  const Tool tool;
  const Command root = describe(tool.app);
  ASSERT_EQ(root.commands.size(), 3u);
  const Command& train = root.commands[0];
  EXPECT_EQ(path_text(train, " "), "tool train");
  ASSERT_EQ(train.positionals.size(), 1u);
  EXPECT_TRUE(train.positionals[0].required);
  ASSERT_EQ(train.options.size(), 5u);  // with --help
  EXPECT_THAT(train.options[1].words, ElementsAre("fp32", "bf16"));
  EXPECT_THAT(train.options[2].names, ElementsAre("-o", "--output"));
  EXPECT_EQ(train.options[2].default_value, "out");
  EXPECT_TRUE(train.options[3].repeated);
  EXPECT_EQ(train.options[4].value, "");
  std::vector<std::string> paths;
  for (const Command* c : all_commands(root)) paths.push_back(path_text(*c, "-"));
  EXPECT_THAT(paths, ElementsAre("tool", "tool-train", "tool-model", "tool-model-gpt", "tool-shell"));
}

TEST(ManPage, OfACommand) {
  const Tool tool;
  EXPECT_EQ(man_page(describe(tool.app).commands[0], "tool 1.0"),
            R"(.TH "TOOL\-TRAIN" "1" "" "tool 1.0" "Partita"
.SH NAME
tool\-train \- train a model
.SH SYNOPSIS
\fBtool train\fR [\fIoption\fR ...] \fImodel\fR
.SH ARGUMENTS
.TP
\fImodel\fR
ONNX file
.SH OPTIONS
.TP
\fB\-h\fR, \fB\-\-help\fR
Print this help message and exit
.TP
\fB\-\-precision\fR \fBfp32\fR|\fBbf16\fR
of numbers
.TP
\fB\-o\fR, \fB\-\-output\fR \fITEXT\fR
\&.npz: [where] \e it's written; default: out
.TP
\fB\-\-pin\fR \fITEXT\fR ...
KEY=VALUE
.TP
\fB\-\-quiet\fR
say nothing
.SH NOTES
Exit codes: 0 fine.
.SH SEE ALSO
\fBtool\fR(1)
)");
}

TEST(ManPage, OfTheProgram) {
  const Tool tool;
  const std::string page = man_page(describe(tool.app), "tool 1.0");
  EXPECT_THAT(page, HasSubstr("tool \\- a tool \\- it's one\n"));
  EXPECT_THAT(page, HasSubstr(".SH COMMANDS\n.TP\n\\fBtool\\-train\\fR(1)\ntrain a model\n"));
  EXPECT_THAT(page, HasSubstr(".SH NOTES\nExit codes: 0 fine.\n"));
}

// What bash offers for the last of these words.
std::vector<std::string> offered(const std::string& words) {
  const TempFolder folder;
  const Tool tool;
  folder.write("completion", bash_completion(describe(tool.app)));
  folder.write("ask", "source " + (folder / "completion") + "\nCOMP_WORDS=(" + words +
                          ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_tool\necho ${COMPREPLY[*]}\n");
  const Outcome bash = run_command("bash -u " + (folder / "ask"));
  EXPECT_EQ(bash.code, 0) << bash.text;
  return absl::StrSplit(bash.text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

TEST(BashCompletion, OffersCommandsOptionsAndWords) {
  EXPECT_THAT(offered("tool ''"), ElementsAre("train", "model", "shell"));
  EXPECT_THAT(offered("tool tr"), ElementsAre("train"));
  EXPECT_THAT(offered("tool model ''"), ElementsAre("gpt"));
  EXPECT_THAT(offered("tool model gpt --l"), ElementsAre("--layers"));
  EXPECT_THAT(offered("tool train --"), ElementsAre("--help", "--precision", "--output", "--pin", "--quiet"));
  EXPECT_THAT(offered("tool train a.onnx --precision b"), ElementsAre("bf16"));
  EXPECT_THAT(offered("tool shell ''"), ElementsAre("bash", "zsh"));
}

TEST(BashCompletion, LeavesFilesToTheShell) {
  EXPECT_THAT(offered("tool train ''"), IsEmpty());
  EXPECT_THAT(offered("tool train --output ''"), IsEmpty());
}

TEST(ZshCompletion, HasAFunctionForEachCommand) {
  const Tool tool;
  const std::string script = zsh_completion(describe(tool.app));
  EXPECT_EQ(script.find("#compdef tool\n"), 0u);
  EXPECT_THAT(script, HasSubstr("'--precision[of numbers]:TEXT:(fp32 bf16)'"));
  EXPECT_THAT(script, HasSubstr(R"('(-o --output)--output[.npz\: \[where\] \\ it'\''s written]:TEXT:_files')"));
  EXPECT_THAT(script, HasSubstr("'*--pin[KEY=VALUE]:TEXT:_files'"));
  EXPECT_THAT(script, HasSubstr("gpt) _tool_model_gpt ;;"));
}

TEST(FishCompletion, SaysWhereAnOptionStands) {
  const Tool tool;
  const std::string script = fish_completion(describe(tool.app));
  EXPECT_THAT(script, HasSubstr(R"(complete -c tool -n 'test (__tool_path) = "tool"' -f -a train -d 'train a model')"));
  EXPECT_THAT(script, HasSubstr(R"(= "tool train"' -l precision -x -a 'fp32 bf16' -d 'of numbers')"));
  EXPECT_THAT(script, HasSubstr(R"(= "tool train"' -s o -l output -r -F -d '.npz: [where] \\ it\'s written')"));
  EXPECT_THAT(script, HasSubstr(R"(= "tool shell"' -f -a 'bash zsh')"));
}

}  // namespace
}  // namespace partita
