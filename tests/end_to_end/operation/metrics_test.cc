// What a run tells while it goes on: rates, and the numbers that a Prometheus server fetches.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/free_port.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr double kForward = 2.0 * 32 * (784 * 128 + 128 * 64 + 64 * 10);
constexpr double kBackward = kForward + 2.0 * 32 * (128 * 64 + 64 * 10);  // the first layer's input has no gradient

// What a server of this host answers, its header included; empty where there is none.
std::string fetch(int port, const std::string& path) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  const std::string ask = cat("GET ", path, " HTTP/1.0\r\n\r\n");
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::write(fd, ask.data(), ask.size()) == static_cast<ssize_t>(ask.size())) {
    std::array<char, 4096> buffer;
    for (ssize_t n; (n = ::read(fd, buffer.data(), buffer.size())) > 0;)
      text.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(fd);
  return text;
}

// Until `done`, or for as long as anything may take.
template <typename Done>
bool wait_until(Done done) {
  for (int k = 0; k < 600; ++k) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

class RunMetrics : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome made = run_partita("model mlp --with-weights --quiet -o " + (out_ / "mlp.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("train.yaml",
               "loss: {kind: cross_entropy, target: label}\noptimizer: {kind: sgd, lr: 0.01}\n"
               "batch: {global: 32}\ndata: {kind: synthetic}\n");
  }
  std::string train(const std::string& flags) const {
    return cat(partita_program(), " train ", out_ / "mlp.onnx", " --train ", out_ / "train.yaml", " ", flags);
  }
  json read(const std::string& file) const { return json::parse(TempFolder::read(out_ / file)); }

  TempFolder out_;
};

TEST_F(RunMetrics, FlopsAreTheModels) {
  const Outcome o = run_command(train("--steps 2 --ranks 2 --peak-flops 1e9 --bundle " + (out_ / "b") + " --metrics " +
                                      (out_ / "m.jsonl") + " --set batch.global=64"));
  ASSERT_EQ(o.code, 0) << o.text;
  const json manifest = read("b/manifest.json");
  EXPECT_EQ(manifest["flops"], 2 * (kForward + kBackward));
  const std::string text = TempFolder::read(out_ / "m.jsonl");
  const json step = json::parse(text.substr(0, text.find('\n')));
  EXPECT_NEAR(step["flops_per_second"].get<double>() * step["seconds"].get<double>(), manifest["flops"].get<double>(),
              1);
  EXPECT_NEAR(step["mfu"].get<double>(), step["flops_per_second"].get<double>() / 2e9, 1e-9);
  EXPECT_THAT(o.text, HasSubstr("mfu"));
  EXPECT_EQ(json::parse(text.substr(text.find('\n')))["rank_seconds"].size(), 2u);
  const Outcome seen = run_partita("watch " + (out_ / "m.jsonl"));
  EXPECT_EQ(seen.code, 0);
  EXPECT_THAT(seen.text, HasSubstr("step 2   loss "));
  EXPECT_THAT(seen.text, HasSubstr("own work of a step, rank by rank"));
}

// What the backward part computes again is no work of the model's.
// A stage has one group of ranks for what it gets and another for what it sends.
TEST_F(RunMetrics, EachIsThereOnce) {
  const Outcome o =
      run_command(train(cat("--ranks 2 --pin pipeline=2 --steps 1 --quiet --metrics ", out_ / "m.jsonl")));
  ASSERT_EQ(o.code, 0) << o.text;
  std::multiset<std::string> names;
  const auto note = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key) names.insert(parsed.get<std::string>());
    return true;
  };
  const json line = json::parse(TempFolder::read(out_ / "m.jsonl"), note);
  EXPECT_TRUE(line.contains("wait_pipeline")) << line;
  for (const std::string& name : names) EXPECT_EQ(names.count(name), 1u) << name;
}

TEST_F(RunMetrics, FlopsDoNotCountRecomputation) {
  const Outcome model = run_partita(cat("model gpt --layers 2 --hidden 32 --heads 2 --vocab 64 --seq 16 --with-weights",
                                        " --quiet -o ", out_ / "gpt.onnx"));
  ASSERT_EQ(model.code, 0) << model.text;
  out_.write("gpt.yaml", "loss: {kind: output, output: loss}\noptimizer: {kind: sgd, lr: 0.01}\nbatch: {global: 4}\n");
  std::map<std::string, json> manifests;
  for (const char* mode : {"none", "full"}) {
    const Outcome o = run_partita(cat("compile ", out_ / "gpt.onnx", " --train ", out_ / "gpt.yaml",
                                      " --pin recompute=", mode, " --quiet -o ", out_ / mode));
    ASSERT_EQ(o.code, 0) << o.text;
    manifests[mode] = read(cat(mode, "/manifest.json"));
  }
  EXPECT_GT(manifests["full"]["steps"], manifests["none"]["steps"]);
  EXPECT_EQ(manifests["full"]["flops"], manifests["none"]["flops"]);
}

// Nor are scores that attention's gradient makes again: products that are spelled out make them once.
TEST_F(RunMetrics, FlopsOfAttentionAreThoseOfItsProducts) {
  const Outcome model =
      run_partita(cat("model bert --layers 2 --hidden 32 --heads 2 --vocab 64 --seq 48 --with-weights", " --quiet -o ",
                      out_ / "bert.onnx"));
  ASSERT_EQ(model.code, 0) << model.text;
  out_.write("bert.yaml", "loss: {kind: output, output: loss}\noptimizer: {kind: sgd, lr: 0.01}\nbatch: {global: 4}\n");
  std::map<std::string, json> manifests;
  for (const char* kernel : {"auto", "math", "math --pin recompute=full"}) {
    const Outcome o = run_partita(cat("compile ", out_ / "bert.onnx", " --train ", out_ / "bert.yaml", " --quiet -o ",
                                      out_ / "bundle", " --set kernels.attention=", kernel));
    ASSERT_EQ(o.code, 0) << o.text;
    manifests[kernel] = read("bundle/manifest.json");
  }
  EXPECT_LT(manifests["auto"]["steps"], manifests["math"]["steps"]);
  for (const auto& [kernel, manifest] : manifests) EXPECT_EQ(manifest["flops"], manifests["auto"]["flops"]) << kernel;
}

TEST_F(RunMetrics, PrometheusFetchesThem) {
  const std::string services = std::string(PARTITA_DEPS) + "/services/usr/bin/prometheus";
  if (!std::filesystem::exists(services)) GTEST_SKIP() << "no " << services << ": run tools/install_test_services";
  const int port = free_port(), server = free_port();
  out_.write("prometheus.yml",
             cat("scrape_configs:\n- job_name: partita\n  scrape_interval: 500ms\n  static_configs: [{targets: "
                 "['127.0.0.1:",
                 port, "']}]\n"));
  const std::string start =
      cat("cd ", out_ / ".", " && exec setsid sh -c '", train(cat("--steps 100000000 --quiet --listen-metrics ", port)),
          " & exec ", services, " --config.file=prometheus.yml --storage.tsdb.path=tsdb ",
          "--web.listen-address=127.0.0.1:", server, "' >log 2>&1 & echo $!");
  const Outcome started = run_command(start);
  const pid_t group = std::atoi(started.text.c_str());
  ASSERT_GT(group, 1) << started.text;
  const auto value = [&](const std::string& name) -> std::optional<double> {
    const std::string answer = fetch(server, "/api/v1/query?query=" + name);
    const json j = json::parse(answer.substr(std::min(answer.size(), answer.find("\r\n\r\n"))), nullptr, false);
    if (!j.is_object() || j["data"]["result"].empty()) return std::nullopt;
    return std::stod(j["data"]["result"][0]["value"][1].get<std::string>());
  };
  EXPECT_TRUE(wait_until([&] { return value("partita_step").value_or(0) > 0; })) << TempFolder::read(out_ / "log");
  const double step = value("partita_step").value_or(0);
  EXPECT_TRUE(wait_until([&] { return value("partita_step").value_or(0) > step; }));
  // A scrape of a busy machine may miss its half of a second: then there is nothing until the next.
  EXPECT_TRUE(wait_until([&] { return value("partita_loss").value_or(0) > 0; }));
  EXPECT_TRUE(wait_until([&] { return value("partita_flops_per_second").value_or(0) > 0; }));
  EXPECT_THAT(fetch(port, "/metrics"), HasSubstr("# TYPE partita_loss gauge"));
  EXPECT_THAT(run_partita(cat("watch http://127.0.0.1:", port)).text, HasSubstr("samples/s"));
  EXPECT_EQ(::kill(-group, SIGKILL), 0);  // both
}

TEST_F(RunMetrics, AddressesThatCannotBeServedAreRefused) {
  const Outcome taken = run_command(train("--steps 1 --listen-metrics nowhere"));
  EXPECT_EQ(taken.code, 2);
  EXPECT_THAT(taken.text, HasSubstr("expected a port, or HOST:PORT"));
  const Outcome other = run_command(train("--steps 1 --listen-metrics 192.0.2.1:9000"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.text, HasSubstr("cannot serve metrics at 192.0.2.1:9000"));
}

}  // namespace
}  // namespace partita
