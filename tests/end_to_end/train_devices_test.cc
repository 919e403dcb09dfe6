// What `train` runs on where nobody says it: a searched layout of a cluster, or of this machine's GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/support/carried_model.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

struct Train {
  Train() { write_text(out); }
  Outcome run(const std::string& flags, const std::string& environment = "") const {
    return run_command(environment + " " + partita_program() + " train " + kCarriedModel + "--data " +
                       (out / "text.bin") + " --steps 3 " + flags);
  }
  json read(const std::string& file) const { return json::parse(TempFolder::read(out / file)); }
  TempFolder out;
};

TEST(Train_Cluster, IsSearchedAndTrainsAsOneRank) {
  Train t;
  t.out.write("cluster.yaml", "nodes: 1\ndevices_per_node: 2\ndevice: cpu\nlinks: [{kind: memory}]\n");
  const Outcome one = t.run("--quiet --metrics " + (t.out / "one.jsonl"));
  ASSERT_EQ(one.code, 0) << one.text;
  const Outcome two = t.run("--cluster " + (t.out / "cluster.yaml") + " --pin pipeline=1 --bundle " +
                            (t.out / "bundle") + " --metrics " + (t.out / "two.jsonl"));
  ASSERT_EQ(two.code, 0) << two.text;
  EXPECT_THAT(two.text, HasSubstr("layouts priced"));
  EXPECT_THAT(t.read("bundle/plan.json")["layout"].dump(), HasSubstr("data 2"));
  const std::vector<double> serial = read_losses(t.out / "one.jsonl"), parallel = read_losses(t.out / "two.jsonl");
  ASSERT_EQ(serial.size(), 3u);
  ASSERT_EQ(parallel.size(), 3u);
  for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(parallel[k], serial[k], 2e-5);
}

TEST(Train_Cluster, ThatIsNotThisMachineIsRefused) {
  Train t;
  t.out.write("nodes.yaml", "nodes: 2\ndevices_per_node: 2\ndevice: cpu\nlinks: [{kind: memory}, {kind: ethernet}]\n");
  const Outcome nodes = t.run("--cluster " + (t.out / "nodes.yaml"));
  EXPECT_EQ(nodes.code, 2) << nodes.text;
  EXPECT_THAT(nodes.text, HasSubstr("expected one node"));
  t.out.write("gpus.yaml", "preset: dgx-h100\n");
  const Outcome gpus = t.run("--cluster " + (t.out / "gpus.yaml"), "LD_LIBRARY_PATH=");
  EXPECT_EQ(gpus.code, 2) << gpus.text;
  EXPECT_THAT(gpus.text, HasSubstr("no GPU was found"));
  const Outcome both = t.run("--ranks 2 --cluster " + (t.out / "gpus.yaml"));
  EXPECT_EQ(both.code, 2) << both.text;
  EXPECT_THAT(both.text, HasSubstr("--ranks"));
}

#ifdef PARTITA_STAND_INS
// NVML is played by this machine, and there is no driver: all but the run itself is done.
std::string machine_of(int gpus, const std::string& name) {
  return "LD_LIBRARY_PATH=" PARTITA_STAND_INS " STAND_IN_GPUS=" + std::to_string(gpus) + " STAND_IN_GPU_NAME='" + name +
         "'";
}

TEST(Train_Gpus, AreFoundAndPlannedFor) {
  Train t;
  const Outcome run = t.run("--bundle " + (t.out / "bundle"), machine_of(2, "NVIDIA H100 80GB HBM3"));
  EXPECT_NE(run.code, 0);
  EXPECT_THAT(run.text, HasSubstr("2 x NVIDIA H100 80GB HBM3"));
  EXPECT_THAT(run.text, HasSubstr("it needs an NVIDIA driver"));
  EXPECT_EQ(t.read("bundle/manifest.json")["target"], "cuda:sm_90");
  EXPECT_EQ(t.read("bundle/manifest.json")["ranks"], 2);
  EXPECT_THAT(t.read("bundle/plan.json").dump(), HasSubstr("nvlink4"));
}

TEST(Train_Gpus, AreThoseThatCudaShows) {
  Train t;
  const Outcome run = t.run("", machine_of(4, "NVIDIA A100-SXM4-80GB") + " CUDA_VISIBLE_DEVICES=2,0,-1,3");
  EXPECT_THAT(run.text, HasSubstr("2 x NVIDIA A100"));
}

TEST(Train_UnknownGpus, AreDataParallel) {
  Train t;
  const Outcome run = t.run("--bundle " + (t.out / "bundle"), machine_of(2, "NVIDIA L40S"));
  EXPECT_THAT(run.text, HasSubstr("data parallel over 2 GPUs"));
  EXPECT_THAT(run.text, HasSubstr("--calibrate"));
  EXPECT_EQ(t.read("bundle/manifest.json")["ranks"], 2);
}

TEST(Train_Gpus, AreLeftOutWhereTheTargetIsTheHost) {
  Train t;
  const Outcome run = t.run("--target cpu:host", machine_of(2, "NVIDIA H100 80GB HBM3"));
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_THAT(run.text, Not(HasSubstr("H100")));
}
#endif

}  // namespace
}  // namespace partita
