// Files that `partita checkpoint` is not to write over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/carried_model.h"

namespace partita {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CheckpointExport, NeverOntoACheckpointNorOneFileOntoTheOther) {
  const TempFolder folder;
  const std::string checkpoints = folder / "ckpt", step = checkpoints + "/step-000000000003";
  train_carried(folder, "--threads 1 --checkpoint " + checkpoints);
  const std::string states = TempFolder::read(step + "/states.safetensors");
  const std::string to = "checkpoint export " + checkpoints + " -o ", weights = folder / "w.safetensors";
  Outcome o = run_partita(to + step + "/states.safetensors");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("states.safetensors' lies in a checkpoint; choose another place"));
  o = run_partita(to + weights + " --optimizer " + step + "/../step-000000000003/states.safetensors");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("--optimizer '"));
  EXPECT_TRUE(TempFolder::read(step + "/states.safetensors") == states);
  o = run_command("cd " + folder.path() + " && " + partita_program() + " " + to + weights +
                  " --optimizer ./w.safetensors");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("choose two files"));
  EXPECT_FALSE(std::filesystem::exists(weights));
}

TEST(CheckpointExport, APrefixThatNoNameHas_IsWarnedOf) {
  const TempFolder folder;
  const std::string checkpoints = folder / "ckpt";
  train_carried(folder, "--threads 1 --checkpoint " + checkpoints);
  const std::string to = "checkpoint export " + checkpoints + " -o " + (folder / "w.safetensors");
  EXPECT_THAT(run_partita(to + " --strip-prefix nobody.").text,
              HasSubstr("warning: --strip-prefix 'nobody.': no name of the checkpoint begins so"));
  EXPECT_THAT(run_partita(to).text, Not(HasSubstr("warning")));
}

}  // namespace
}  // namespace partita
