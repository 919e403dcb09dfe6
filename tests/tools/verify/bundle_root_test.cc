// No rank executes a byte that its bundle's root does not stand for, whoever starts it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_keys.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Two verified bundles, made once, whose recipes differ in a rate: for two ranks, with evaluation and first weights.
class BundleRoot : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = new TempFolder;
    const std::string model = *made_ / "model.onnx";
    ASSERT_EQ(run_partita(cat("model mlp --layers 16,32,4 --batch 8 --with-weights --quiet -o ", model)).code, 0);
    for (const char* name : {"one", "other"}) {
      const std::string recipe = made_->write(
          cat(name, ".yaml"), cat("loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: ",
                                  *name == 'o' && name[1] == 'n' ? 0.1 : 0.2,
                                  "}\ndata: {kind: synthetic}\nevaluate: {every: 1, batches: 1, data: {kind: "
                                  "synthetic}}\n"));
      const Outcome compiled =
          run_partita(cat("compile ", model, " --train ", recipe, " --ranks 2 --quiet -o ", *made_ / name));
      ASSERT_EQ(compiled.code, 0) << compiled.text;
      const Outcome verified = run_partita(cat("verify --numeric --threads 1 --quiet ", *made_ / name));
      ASSERT_EQ(verified.code, 0) << verified.text;
    }
  }
  static void TearDownTestSuite() { delete made_; }

  static std::string bundle(const char* name = "one") { return *made_ / name; }
  static std::vector<std::string> files(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& file : fs::recursive_directory_iterator(folder))
      if (file.is_regular_file()) names.push_back(fs::relative(file.path(), folder).string());
    return names;
  }
  // A copy whose one file is to be changed; the others stay the very files, as all this is read only.
  std::string copy(const std::string& but, std::string_view content) const {
    const std::string folder = out_ / "copy";
    fs::remove_all(folder);
    fs::copy(bundle(), folder, fs::copy_options::recursive | fs::copy_options::create_hard_links);
    const fs::perms mode = fs::status(bundle() + "/" + but).permissions();
    fs::remove(folder + "/" + but);
    if (!content.empty()) out_.write("copy/" + but, content);
    if (!content.empty()) fs::permissions(folder + "/" + but, mode);
    return folder;
  }
  static std::string mpirun(const std::string& folder) {
    return cat("mpirun --oversubscribe -n 2 '", folder, "/rank' --threads 1 --steps 1 --quiet");
  }
  static Outcome run(const std::string& folder, const std::string& flags) {
    return run_partita(cat("run '", folder, "' --threads 1 --steps 1 --quiet ", flags));
  }
  void expect_refused(const std::string& folder, const std::string& name, bool by_mpi) const {
    std::vector<Outcome> all = {run(folder, ""), run(folder, "--processes"),
                                run(folder, cat("--max-restarts 1 --checkpoint ", out_ / "kept")),
                                run_partita("verify --quiet " + folder)};
    if (by_mpi) all.push_back(run_command(mpirun(folder)));
    for (size_t k = 0; k < all.size(); ++k) {
      EXPECT_NE(all[k].code, 0) << name << ", way " << k;
      EXPECT_THAT(all[k].text, HasSubstr(name)) << "way " << k;
    }
  }

  TempFolder out_;
  static TempFolder* made_;
};
TempFolder* BundleRoot::made_ = nullptr;

TEST_F(BundleRoot, CopiedAndRenamed_Runs) {
  const std::string moved = out_ / "another name";
  fs::copy(bundle(), moved, fs::copy_options::recursive);
  for (const char* flags : {"", "--processes", "--require-certificate"}) {
    const Outcome ran = run(moved, flags);
    EXPECT_EQ(ran.code, 0) << flags << ": " << ran.text;
  }
  const Outcome by_mpi = run_command(mpirun(moved));
  EXPECT_EQ(by_mpi.code, 0) << by_mpi.text;
}

TEST_F(BundleRoot, AFlippedBit_IsRefusedByAllWaysToStart) {
  const std::set<std::string> by_mpi = {"program.partita", "initial.safetensors", "rank", "verify/rank.steps"};
  for (const std::string& name : files(bundle())) {
    if (name.starts_with("certificate")) continue;
    std::string text = TempFolder::read(bundle() + "/" + name);
    char& byte = text[text.size() * 3 / 4];
    byte = static_cast<char>(byte ^ 1);
    // The manifest's own hash is in the certificate alone.
    if (name == "manifest.json") {
      EXPECT_THAT(run(copy(name, text), "").text, HasSubstr(name));
      continue;
    }
    if (name.starts_with("lib/") && name.find("dnnl") == name.npos) {  // many alike
      EXPECT_THAT(run(copy(name, text), "").text, HasSubstr(name));
    } else {
      expect_refused(copy(name, text), name, by_mpi.count(name) > 0);
    }
  }
}

TEST_F(BundleRoot, AFileOfAnotherBundle_IsRefusedByAllWaysToStart) {
  int exchanged = 0;
  for (const std::string& name : files(bundle())) {
    const std::string theirs = TempFolder::read(bundle("other") + "/" + name);
    if (theirs == TempFolder::read(bundle() + "/" + name)) continue;
    ++exchanged;
    if (name == "manifest.json" || name == "certificate.json") {
      EXPECT_THAT(run(copy(name, theirs), "").text, HasSubstr("certificate.json' is of another bundle"));
      EXPECT_THAT(run(copy(name, theirs), "--processes").text, HasSubstr("certificate.json' is of another bundle"));
      EXPECT_THAT(run_command(mpirun(copy(name, theirs))).text, HasSubstr("certificate.json' is of another bundle"));
    } else {
      expect_refused(copy(name, theirs), name, true);
    }
  }
  EXPECT_GE(exchanged, 4);  // programs, graphs, manifest, certificate
}

TEST_F(BundleRoot, AMissingFile_IsRefusedByAllWaysToStart) {
  for (const std::string& name : files(bundle())) {
    if (name.starts_with("certificate") || name.starts_with("lib/libabsl")) continue;
    const Outcome ran = run(copy(name, ""), "");
    EXPECT_NE(ran.code, 0) << name;
    EXPECT_THAT(ran.text, HasSubstr(name));
  }
}

TEST_F(BundleRoot, ALibraryThatIsNotListed_IsRefused) {
  const std::string folder = copy("lib/libextra.so", "");
  fs::create_directories(folder + "/lib");
  out_.write("copy/lib/libextra.so", "anything");
  expect_refused(folder, "lib/libextra.so", true);
}

// It is verified anew, and the manifest says what does not follow from the programs.
TEST_F(BundleRoot, AnEditOfTheManifest_IsRefusedOrHarmless) {
  const nlohmann::json good = nlohmann::json::parse(TempFolder::read(bundle() + "/manifest.json"));
  const std::set<std::string> told = {"warnings", "files", "form", "sha256"};
  for (const auto& [key, value] : good.items()) {
    if (told.count(key) > 0) continue;
    nlohmann::json bad = good;
    bad.erase(key);
    const Outcome verified = run_partita("verify --quiet " + copy("manifest.json", bad.dump()));
    EXPECT_NE(verified.code, 0) << key;
    EXPECT_THAT(verified.text, HasSubstr(key));
  }
  for (const auto& [path, value] : {std::pair<const char*, nlohmann::json>{"/seed", 1},
                                    {"/ranks", 4},
                                    {"/samples_per_step", 16},
                                    {"/data/shuffle", true},
                                    {"/evaluate/batches", 2},
                                    {"/mesh/data", 1},
                                    {"/compress", {{"kind", "bf16"}}},
                                    {"/frog", 1}}) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(path)] = value;
    const Outcome verified = run_partita("verify --quiet " + copy("manifest.json", bad.dump()));
    EXPECT_EQ(verified.code, 4) << path << ": " << verified.text;
    EXPECT_THAT(verified.text, HasSubstr("manifest.json")) << path;
  }
}

TEST_F(BundleRoot, ASignature_IsAskedFor) {
  const std::string secret = out_.write("secret.pem", kPrivateKey), key = out_.write("key.pem", kPublicKey),
                    other = out_.write("other.pem", kOtherPublicKey);
  const std::string folder = copy("certificate.json", "");
  for (const std::string& flags : {std::string("--require-certificate"), "--trust " + key}) {
    EXPECT_THAT(run(folder, flags).text, HasSubstr("certificate.json' is missing"));
    EXPECT_THAT(run_command(mpirun(folder) + " " + flags).text, HasSubstr("certificate.json' is missing"));
  }
  const Outcome verified = run_partita(cat("verify --quiet --sign ", secret, " ", folder));
  ASSERT_EQ(verified.code, 0) << verified.text;
  for (const std::string& flags : {"--trust " + key, "--processes --trust " + key}) {
    const Outcome ran = run(folder, flags);
    EXPECT_EQ(ran.code, 0) << ran.text;
    EXPECT_EQ(run(folder, "--trust " + other).code, 2);
  }
  EXPECT_EQ(run_command(mpirun(folder) + " --trust " + key).code, 0);
  EXPECT_NE(run_command(mpirun(folder) + " --trust " + other).code, 0);
  EXPECT_EQ(run_partita("verify --quiet " + folder).code, 0);  // which takes the signature away
  EXPECT_THAT(run(folder, "--trust " + key).text, HasSubstr("certificate.sig"));
}

}  // namespace
}  // namespace partita
