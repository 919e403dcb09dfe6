// Checkpoints through the command line: killed runs, other plans, other programs' files.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/files/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

extern char** environ;

namespace partita {
namespace {

namespace fs = std::filesystem;
using runtime::SafetensorsFile;

std::string bytes_of(const std::string& path) { return TempFolder::read(path); }

// By step; where a run was taken up again, the last line of a step counts.
std::map<int64_t, double> losses(const std::string& path) {
  std::map<int64_t, double> out;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object()) out[j["step"].get<int64_t>()] = j["loss"].get<double>();
  }
  return out;
}

class CheckpointCommand : public testing::Test {
 protected:
  static constexpr int kSteps = 24;

  std::string text() {
    std::string s;
    for (int k = 0; k < 4000; ++k) s += "line " + std::to_string(k * k % 977) + " of a text that repeats\n";
    return out_.write("text.bin", s);
  }
  std::string compile(const std::string& name, const std::string& flags) {
    Outcome o = run_command(partita_program() + " compile " + gpt2_ + "/model.onnx --train " + gpt2_ +
                            "/train.yaml --quiet " + flags + " -o " + (out_ / name));
    EXPECT_EQ(o.code, 0) << o.text;
    return out_ / name;
  }
  std::string run(const std::string& bundle, const std::string& name, int steps) {
    return partita_program() + " run " + bundle + " --threads 1 --quiet --data " + data_ + " --steps " +
           std::to_string(steps) + " --metrics " + (out_ / (name + ".jsonl"));
  }
  // Each tensor's checksum, by name.
  std::map<std::string, std::string> tensors(const std::string& folder) {
    std::map<std::string, std::string> out;
    auto manifest = runtime::read_manifest(*runtime::find_checkpoint(folder));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    for (const auto& t : manifest->tensors) out[t.name] = std::to_string(t.checksum);
    return out;
  }
  // Parameters and optimizer states, as the safetensors of the newest checkpoint.
  std::string states(const std::string& folder) {
    return bytes_of(*runtime::find_checkpoint(folder) + "/states.safetensors");
  }

  TempFolder out_;
  std::string gpt2_ = std::string(PARTITA_TEST_DATA) + "/gpt2", data_ = text();
};

TEST_F(CheckpointCommand, KilledAtRandomMoments_GoesOnBitForBit) {
  const std::string bundle = compile("bundle", "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=1");
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(run_command(run(bundle, "whole", kSteps) + " --save " + (out_ / "whole.safetensors")).code, 0);
  const double whole_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string folder = out_ / "checkpoints";
  std::mt19937 random(11);
  int kills = 0, resumed = 0;
  // A run that is killed 50 times; each time it gets a random part of what the whole takes. When it reaches the end it
  // starts again from nothing.
  std::map<int64_t, double> all = losses(out_ / "whole.jsonl");
  ASSERT_EQ(all.size(), static_cast<size_t>(kSteps));
  auto check = [&](const std::string& name) {
    for (const auto& [step, loss] : losses(out_ / (name + ".jsonl"))) EXPECT_EQ(loss, all[step]) << step;
  };
  while (kills < 50) {
    std::string command = run(bundle, "killed", kSteps) + " --checkpoint " + folder + " --every 2 --resume --save " +
                          (out_ / "killed.safetensors");
    std::vector<std::string> words = {"sh", "-c", "exec " + command + " 2>>" + (out_ / "killed.log")};
    std::vector<char*> arguments;
    for (std::string& w : words) arguments.push_back(w.data());
    arguments.push_back(nullptr);
    pid_t id = 0;
    ASSERT_EQ(posix_spawn(&id, "/bin/sh", nullptr, nullptr, arguments.data(), environ), 0);
    const double seconds = std::uniform_real_distribution<double>(0.05, 1.0)(random) * whole_seconds;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    ::kill(id, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(id, &status, 0), id);
    resumed += !runtime::list_checkpoints(folder).empty();
    if (WIFSIGNALED(status)) {
      ++kills;
      // No more has to be taken again than lies between two checkpoints.
      const auto done = losses(out_ / "killed.jsonl");
      const auto there = runtime::list_checkpoints(folder);
      const int64_t steps = done.empty() ? 0 : done.rbegin()->first + 1;
      EXPECT_LE(steps - (there.empty() ? 0 : there.back()), 2);
      continue;
    }
    ASSERT_EQ(WEXITSTATUS(status), 0) << bytes_of(out_ / "killed.log");
    EXPECT_EQ(bytes_of(out_ / "killed.safetensors"), bytes_of(out_ / "whole.safetensors"));
    check("killed");
    fs::remove_all(folder);
    fs::remove(out_ / "killed.jsonl");
  }
  EXPECT_GT(resumed, 5);
  ASSERT_EQ(run_command(run(bundle, "killed", kSteps) + " --checkpoint " + folder + " --resume --save " +
                        (out_ / "killed.safetensors"))
                .code,
            0);
  EXPECT_EQ(bytes_of(out_ / "killed.safetensors"), bytes_of(out_ / "whole.safetensors"));
  check("killed");
}

// A limit on the size of files stands for a full disk, from step 4 on.
TEST_F(CheckpointCommand, FullDisk_GoesOnFromTheLastWholeOne_BitForBit) {
  const std::string bundle = compile("bundle", "--ranks 4 --pin pipeline=2 --pin data=2 --pin micro_batch=2"),
                    folder = out_ / "checkpoints";
  const std::string keep = " --checkpoint " + folder + " --every 2 --resume";
  ASSERT_EQ(run_command(run(bundle, "whole", 10) + " --save " + (out_ / "whole.safetensors")).code, 0);
  Outcome begun = run_command(run(bundle, "broken", 4) + keep);
  ASSERT_EQ(begun.code, 0) << begun.text;
  Outcome full = run_command("trap '' XFSZ; ulimit -f 64; " + run(bundle, "broken", 8) + keep);
  EXPECT_EQ(full.code, 3) << full.text;
  EXPECT_NE(full.text.find("step 6 was not written"), std::string::npos) << full.text;
  EXPECT_NE(full.text.find("step 4 is kept"), std::string::npos) << full.text;
  EXPECT_EQ(runtime::list_checkpoints(folder), (std::vector<int64_t>{2, 4}));
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_FALSE(entry.path().filename().string().ends_with(".partial")) << entry.path();
  Outcome resumed = run_command(run(bundle, "broken", 10) + keep + " --save " + (out_ / "broken.safetensors"));
  ASSERT_EQ(resumed.code, 0) << resumed.text;
  EXPECT_EQ(losses(out_ / "broken.jsonl"), losses(out_ / "whole.jsonl"));
  EXPECT_EQ(bytes_of(out_ / "broken.safetensors"), bytes_of(out_ / "whole.safetensors"));
}

TEST_F(CheckpointCommand, UnderEveryOtherPlan_StatesAreTheSame) {
  const std::vector<std::string> plans = {"--ranks 1",
                                          "--ranks 4 --like ddp",
                                          "--ranks 4 --pin tensor=2 --pin data=2",
                                          "--ranks 4 --pin pipeline=2 --pin tensor=2 --pin micro_batch=2",
                                          "--ranks 4 --like zero3",
                                          "--pin 'stages=[{data: 2}, {tensor: 2}]' --pin zero=1 --pin micro_batch=2"};
  std::vector<std::string> bundles;
  for (size_t k = 0; k < plans.size(); ++k) bundles.push_back(compile("bundle" + std::to_string(k), plans[k]));
  for (size_t from = 0; from < plans.size(); ++from) {
    const std::string saved = out_ / ("from" + std::to_string(from));
    Outcome o = run_command(run(bundles[from], "a", 3) + " --checkpoint " + saved);
    ASSERT_EQ(o.code, 0) << plans[from] << o.text;
    for (size_t to = 0; to < plans.size(); ++to) {
      // No step is left to run: what was loaded is saved again.
      const std::string again = out_ / ("to" + std::to_string(to));
      fs::remove_all(again);
      o = run_command(run(bundles[to], "b", 3) + " --resume " + saved + " --checkpoint " + again);
      ASSERT_EQ(o.code, 0) << plans[from] << " to " << plans[to] << o.text;
      EXPECT_TRUE(states(again) == states(saved)) << plans[from] << " to " << plans[to];
    }
  }
}

TEST_F(CheckpointCommand, Sigterm_SavesAndSaysSo) {
  const std::string bundle = compile("bundle", "--ranks 2");
  const std::string folder = out_ / "checkpoints";
  Outcome o = run_command("timeout -s TERM 3 " + run(bundle, "a", 1000000) + " --checkpoint " + folder);
  EXPECT_EQ(o.code, 124) << o.text;
  EXPECT_NE(o.text.find("--resume"), std::string::npos) << o.text;
  EXPECT_EQ(runtime::list_checkpoints(folder).size(), 1u);
  EXPECT_EQ(run_command(run(bundle, "b", 2) + " --checkpoint " + folder).code, 2);
}

// Rank 2 of 4 is killed while the run goes on: once it has taken steps, and once it has written a checkpoint.
TEST_F(CheckpointCommand, LostRank_EndsAllSoon_AndRestartsGoOn) {
  const std::string bundle = compile("bundle", "--ranks 4");
  ASSERT_EQ(run_command(run(bundle, "whole", kSteps) + " --save " + (out_ / "whole.safetensors")).code, 0);
  const std::string folder = out_ / "checkpoints";
  // Processes are told apart by RANK in their environment.
  const auto killed_once = [&](const std::string& there, const std::string& command) {
    return run_command(command + " & run=$!; until " + there + "; do sleep 0.01; done; for p in $(pgrep -P $run); do " +
                       "grep -qz '^RANK=2$' /proc/$p/environ && kill -9 $p; done; wait $run");
  };
  const Outcome lost =
      killed_once("[ -s " + (out_ / "lost.jsonl") + " ]", run(bundle, "lost", 1000000) + " --processes");
  EXPECT_LT(lost.seconds, 60);
  EXPECT_GE(lost.code, 128) << lost.text;
  EXPECT_NE(lost.text.find("root cause: rank 2 on host"), std::string::npos) << lost.text;
  EXPECT_NE(lost.text.find(", in all_"), std::string::npos) << lost.text;
  const Outcome restarted =
      killed_once("ls " + folder + " 2>/dev/null | grep -q ^step",
                  run(bundle, "restarted", kSteps) + " --processes --max-restarts 3 --checkpoint " + folder +
                      " --every 2 --save " + (out_ / "restarted.safetensors"));
  EXPECT_EQ(restarted.code, 0) << restarted.text;
  EXPECT_NE(restarted.text.find("restart 1 of 3, from the last good checkpoint"), std::string::npos) << restarted.text;
  EXPECT_EQ(bytes_of(out_ / "restarted.safetensors"), bytes_of(out_ / "whole.safetensors")) << restarted.text;
}

TEST_F(CheckpointCommand, ExportsAndImports) {
  const std::string bundle = compile("bundle", ""), folder = out_ / "checkpoints";
  ASSERT_EQ(
      run_command(run(bundle, "a", 3) + " --checkpoint " + folder + " --save " + (out_ / "saved.safetensors")).code, 0);
  const std::string export_to = partita_program() + " checkpoint export " + folder + " -o ";
  Outcome o = run_command(export_to + (out_ / "module.safetensors") + " --optimizer " + (out_ / "adamw.safetensors"));
  ASSERT_EQ(o.code, 0) << o.text;
  // From the two files the same states come back.
  o = run_command(run(bundle, "b", 0) + " --init " + (out_ / "module.safetensors") + " --init-optimizer " +
                  (out_ / "adamw.safetensors") + " --checkpoint " + (out_ / "again"));
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_EQ(tensors(out_ / "again"), tensors(folder));
  ASSERT_EQ(run_command(run(bundle, "c", 3) + " --init " + folder + " --save " + (out_ / "c.safetensors")).code, 0);
  // As ONNX, trained on by a program of its own.
  o = run_command(export_to + (out_ / "trained.onnx") + " --model " + gpt2_ + "/model.onnx");
  ASSERT_EQ(o.code, 0) << o.text;
  o = run_command(partita_program() + " train " + (out_ / "trained.onnx") + " --train " + gpt2_ +
                  "/train.yaml --quiet --steps 3 --threads 1 --data " + data_ + " --save " + (out_ / "d.safetensors"));
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_EQ(bytes_of(out_ / "c.safetensors"), bytes_of(out_ / "d.safetensors"));
  // Under the names and dtypes of an example.
  ASSERT_EQ(run_command(export_to + (out_ / "like.safetensors") + " --like " + (out_ / "saved.safetensors")).code, 0);
  EXPECT_EQ(bytes_of(out_ / "like.safetensors"), bytes_of(out_ / "saved.safetensors"));
  // Names that a wrapper changed: refused with what to say, and nothing is written.
  const auto saved = SafetensorsFile::open(out_ / "saved.safetensors");
  std::vector<runtime::TensorInfo> wrapped;
  for (const auto& e : saved->entries()) wrapped.push_back({"m." + e.name, e.dtype, e.shape});
  auto writer = runtime::SafetensorsWriter::create(out_ / "wrapped.safetensors", wrapped);
  for (const auto& e : saved->entries()) {
    const std::vector<std::byte> zeros(saved->data(e).size());
    ASSERT_TRUE((*writer)->write("m." + e.name, zeros).ok());
  }
  ASSERT_TRUE((*writer)->finish().ok());
  const std::string export_wrapped =
      export_to + (out_ / "out.safetensors") + " --like " + (out_ / "wrapped.safetensors");
  o = run_command(export_wrapped);
  EXPECT_EQ(o.code, 2) << o.text;
  EXPECT_NE(o.text.find("say --add-prefix m."), std::string::npos) << o.text;
  EXPECT_FALSE(fs::exists(out_ / "out.safetensors"));
  ASSERT_EQ(run_command(export_wrapped + " --add-prefix m.").code, 0);
  const auto written = SafetensorsFile::open(out_ / "out.safetensors");
  for (const auto& e : saved->entries()) {
    const auto before = saved->data(e), now = written->data(*written->find("m." + e.name));
    EXPECT_TRUE(std::equal(before.begin(), before.end(), now.begin(), now.end())) << e.name;
  }
  o = run_command(partita_program() + " checkpoint inspect " + folder);
  EXPECT_EQ(o.code, 0);
  EXPECT_NE(o.text.find("step 3"), std::string::npos) << o.text;
  o = run_command(partita_program() + " checkpoint convert " + folder + " --dtype bf16 -o " + (out_ / "half"));
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_EQ(run_command(run(bundle, "e", 4) + " --resume " + (out_ / "half")).code, 0);
}

// Of a damaged one nothing is written: the weights are sound here, and a state of the optimizer is not.
TEST_F(CheckpointCommand, DamagedOne_LeavesNothingBehind) {
  const std::string bundle = compile("bundle", ""), folder = out_ / "checkpoints";
  ASSERT_EQ(run_command(run(bundle, "a", 1) + " --checkpoint " + folder).code, 0);
  const std::string states = folder + "/step-000000000001/states.safetensors";
  const auto whole = SafetensorsFile::open(states);
  const std::byte *state = nullptr, *end = nullptr;
  for (const auto& e : whole->entries()) {
    const auto bytes = whole->data(e);
    end = std::max(end, bytes.data() + bytes.size());
    if (e.name.ends_with("exp_avg_sq")) state = bytes.data();
  }
  ASSERT_NE(state, nullptr);
  std::fstream file(states, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(state - end, std::ios::end).write("damaged!", 8);
  file.close();
  const std::string verb = partita_program() + " checkpoint ";
  EXPECT_EQ(run_command(verb + "convert " + folder + " -o " + (out_ / "one")).code, 2);
  EXPECT_TRUE(fs::is_empty(out_ / "one"));
  EXPECT_EQ(run_command(verb + "export " + folder + " -o " + (out_ / "weights.safetensors")).code, 0);
  EXPECT_EQ(run_command(verb + "export " + folder + " -o " + (out_ / "e.safetensors") + " --optimizer " +
                        (out_ / "eo.safetensors"))
                .code,
            2);
  EXPECT_FALSE(fs::exists(out_ / "e.safetensors") || fs::exists(out_ / "eo.safetensors"));
}

// As save_pretrained(max_shard_size=…) leaves them: two files in bf16 and an index, names with the base model's prefix.
TEST_F(CheckpointCommand, StartsFromAFolderOfShards_AndWritesOne) {
  const std::string bundle = compile("bundle", "--ranks 2 --pin tensor=2"), folder = out_ / "checkpoints";
  ASSERT_EQ(run_command(run(bundle, "a", 1) + " --save " + (out_ / "saved.safetensors")).code, 0);
  const auto saved = SafetensorsFile::open(out_ / "saved.safetensors");
  const std::vector<std::string> shards = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
  fs::create_directories(out_ / "hub");
  nlohmann::json map;
  for (size_t s = 0; s < 2; ++s) {
    std::vector<runtime::TensorInfo> infos;
    for (size_t k = s; k < saved->entries().size(); k += 2)
      infos.push_back({"base." + saved->entries()[k].name, DType::kBF16, saved->entries()[k].shape});
    auto writer = runtime::SafetensorsWriter::create(out_ / ("hub/" + shards[s]), infos, {{"format", "pt"}});
    for (const runtime::TensorInfo& info : infos) {
      const auto from = saved->data(*saved->find(info.name.substr(5)));
      std::vector<std::byte> half(from.size() / 2);  // the upper bits of each
      for (size_t b = 0; b < half.size(); ++b) half[b] = from[b / 2 * 4 + 2 + b % 2];
      ASSERT_TRUE((*writer)->write(info.name, half).ok());
      map[info.name] = shards[s];
    }
    ASSERT_TRUE((*writer)->finish().ok());
  }
  out_.write("hub/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  out_.write("hub/config.json", "{}");
  out_.write("hub/pytorch_model.bin", "other weights");
  const std::string start = run(bundle, "b", 0) + " --checkpoint " + folder + " --init " + (out_ / "hub");
  Outcome o = run_command(start);
  EXPECT_EQ(o.code, 2) << o.text;
  EXPECT_NE(o.text.find("say --add-prefix base. ("), std::string::npos) << o.text;
  o = run_command(start + " --add-prefix base.");
  ASSERT_EQ(o.code, 0) << o.text;
  const std::string give =
      partita_program() + " checkpoint export " + folder + " --add-prefix base. --hf " + (out_ / "back");
  o = run_command(give);
  EXPECT_EQ(o.code, 2) << o.text;
  EXPECT_NE(o.text.find("--hf: expected --like FOLDER"), std::string::npos) << o.text;
  o = run_command(give + " --like " + (out_ / "hub"));
  ASSERT_EQ(o.code, 0) << o.text;
  std::vector<std::string> files = shards;
  files.insert(files.end(), {"model.safetensors.index.json", "config.json"});
  for (const std::string& name : files)
    EXPECT_EQ(bytes_of(out_ / ("back/" + name)), bytes_of(out_ / ("hub/" + name))) << name;
  EXPECT_FALSE(fs::exists(out_ / "back/pytorch_model.bin"));
}

TEST_F(CheckpointCommand, BadInput_ExitsWithTwo) {
  const std::string bundle = compile("bundle", ""), folder = out_ / "checkpoints";
  ASSERT_EQ(run_command(run(bundle, "a", 2) + " --checkpoint " + folder).code, 0);
  const std::string other = out_.write("sgd.yaml",
                                       "loss: {kind: output, output: loss}\noptimizer: {kind: sgd, lr: 0.1}\nbatch: "
                                       "{global: 8}\ndata: {kind: tokens, dtype: u8}\n");
  const std::string torn = out_ / "torn";
  fs::create_directories(torn);
  fs::copy(folder, torn, fs::copy_options::recursive);
  fs::resize_file(torn + "/step-000000000002/states.safetensors", 5000);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {run(bundle, "x", 4) + " --resume " + torn + "/step-000000000002", "damaged"},
      {run(bundle, "x", 4) + " --resume --checkpoint " + torn, "damaged"},
      {run(bundle, "x", 4) + " --resume " + (out_ / "nowhere"), "nowhere"},
      {run(bundle, "x", 4) + " --resume", "--checkpoint"},
      {run(bundle, "x", 4) + " --checkpoint " + folder, "--resume"},
      {run(bundle, "x", 4) + " --init " + out_.write("no.safetensors", "nothing"), "no.safetensors"},
      {run(bundle, "x", 4) + " --max-restarts 2", "--checkpoint"},
      {partita_program() + " train " + gpt2_ + "/model.onnx --train " + other + " --quiet --steps 4 --data " + data_ +
           " --resume " + folder,
       "exp_avg"},
      {partita_program() + " checkpoint inspect " + torn, "damaged"},
      {partita_program() + " checkpoint export " + folder + " -o " + (out_ / "x.onnx"), "--model"},
      {partita_program() + " checkpoint export " + folder + " -o " + (out_ / "x.bin"), ".safetensors"},
  };
  for (const auto& [command, expected] : cases) {
    Outcome o = run_command(command);
    EXPECT_EQ(o.code, 2) << command << ": " << o.text;
    EXPECT_NE(o.text.find(expected), std::string::npos) << command << ": " << o.text;
  }
}

}  // namespace
}  // namespace partita
