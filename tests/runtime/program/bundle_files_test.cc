#include "runtime/program/bundle_files.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/program_image.h"
#include "runtime/program/signature.h"
#include "tests/runtime/support/program_samples.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_keys.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr size_t kLarge = (size_t{17} << 20) + 5;  // in chunks of a MiB
const std::vector<std::string> kNames = {
    "initial.safetensors", "initial.safetensors.chunks", "lib/module.so", "program.partita", "rank",
    "verify/serial.ir"};

class BundleFilesTest : public ::testing::Test {
 protected:
  BundleFilesTest() {
    fs::create_directory(folder_ / "lib");
    fs::create_directory(folder_ / "verify");
    folder_.write("program.partita", serialize_program(least_squares(2, 8, 2)));
    for (const char* name : {"lib/module.so", "rank", "verify/serial.ir"})
      folder_.write(name, std::string("of ") + name);
    std::string large(kLarge, 'w');
    for (size_t k = 0; k < large.size(); k += 997) large[k] = static_cast<char>(k % 251);
    folder_.write("initial.safetensors", large);
    EXPECT_TRUE(seal_bundle(folder_.path(), {{"version", kManifestVersion}}).ok());
  }
  // What opening and checking all of it says.
  absl::Status opened(const BundleTrust& trust = {}) const {
    auto files = BundleFiles::open(folder_.path(), trust);
    return files.ok() ? (*files)->check(2, true) : files.status();
  }
  std::string refused(const BundleTrust& trust = {}) const {
    const absl::Status status = opened(trust);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }
  void change(const std::string& name, size_t at) const {
    std::string text = TempFolder::read(folder_ / name);
    text[at] = static_cast<char>(text[at] ^ 4);
    folder_.write(name, text);
  }
  TempFolder folder_;
};

TEST_F(BundleFilesTest, AsItWasSealed_Opens) {
  auto files = BundleFiles::open(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->names(), kNames);
  EXPECT_EQ((*files)->root(), sha256_hex(as_byte_span(TempFolder::read(folder_ / kManifestName))));
  EXPECT_TRUE((*files)->check(3, true).ok());
  auto programs = (*files)->programs(kImageName);
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_EQ(programs->front().samples_per_step, 8);
  EXPECT_THAT(std::string((*files)->file("nothing").status().message()), HasSubstr("'nothing' is not among the files"));
}

// Pages of this process that are files'.
int64_t resident_file_bytes() {
  std::ifstream status("/proc/self/statm");
  int64_t all = 0, resident = 0, shared = 0;
  status >> all >> resident >> shared;
  return shared * ::sysconf(_SC_PAGESIZE);
}

TEST_F(BundleFilesTest, WhatWasChecked_IsNotKeptInMemory) {
  auto files = BundleFiles::open(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  const int64_t before = resident_file_bytes();
  ASSERT_TRUE((*files)->check(2, true).ok());
  EXPECT_LT(resident_file_bytes() - before, static_cast<int64_t>(kLarge / 4));
  const auto weights = (*files)->file("initial.safetensors");
  ASSERT_TRUE(weights.ok());
  const std::string_view text = as_text((*weights)->bytes());
  EXPECT_EQ(text, TempFolder::read(folder_ / "initial.safetensors"));  // and is there again
  EXPECT_GT(resident_file_bytes() - before, static_cast<int64_t>(kLarge / 2));
  MappedFile::let_go((*weights)->bytes());
  EXPECT_LT(resident_file_bytes() - before, static_cast<int64_t>(kLarge / 4));
}

TEST_F(BundleFilesTest, SealedAgain_IsTheSame) {
  const std::string root = (*BundleFiles::open(folder_.path()))->root();
  ASSERT_TRUE(seal_bundle(folder_.path(), {{"version", kManifestVersion}}).ok());
  EXPECT_EQ((*BundleFiles::open(folder_.path()))->root(), root);
}

TEST_F(BundleFilesTest, AFlippedBit_IsRefusedWithTheFilesName) {
  for (const std::string& name : kNames) {
    const std::string good = TempFolder::read(folder_ / name);
    for (size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      change(name, at);
      EXPECT_THAT(refused(), HasSubstr(name)) << at;
      folder_.write(name, good);
    }
  }
  EXPECT_TRUE(opened().ok());
}

TEST_F(BundleFilesTest, CutShortExchangedOrMissing_IsRefusedWithTheFilesName) {
  for (const std::string& name : kNames) {
    const std::string good = TempFolder::read(folder_ / name);
    folder_.write(name, good.substr(1));
    EXPECT_THAT(refused(), HasSubstr(name));
    folder_.write(name, TempFolder::read(folder_ / kManifestName));
    EXPECT_THAT(refused(), HasSubstr(name));
    fs::remove(folder_ / name);
    EXPECT_THAT(refused(), HasSubstr(name));
    folder_.write(name, good);
  }
}

TEST_F(BundleFilesTest, OfALargeFile_TheChunksThatAreReadAreChecked) {
  change("initial.safetensors", kLarge - 1);
  auto files = BundleFiles::open(folder_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE((*files)->check(2, false).ok());
  auto file = *(*files)->file("initial.safetensors");
  const int64_t chunk = 1 << 20;
  EXPECT_EQ(file->chunks(), 18u);
  EXPECT_EQ(file->chunks_of(chunk - 1, chunk), (std::pair<size_t, size_t>(0, 1)));
  EXPECT_EQ(file->chunks_of(chunk - 1, chunk + 1), (std::pair<size_t, size_t>(0, 2)));
  EXPECT_TRUE(file->check(0, 17 * chunk).ok());
  const absl::Status status = file->check(17 * chunk, 17 * chunk + 1);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes [17825792, 17825797)"));
  EXPECT_EQ(file->check_all(3), status);
}

TEST_F(BundleFilesTest, WhatIsNotListed_IsRefusedWhereTheLoaderLooks) {
  folder_.write("notes.txt", "of the user");
  EXPECT_TRUE(opened().ok());
  folder_.write("lib/libm.so.6", "another");
  EXPECT_THAT(refused(), HasSubstr("lib/libm.so.6"));
  fs::remove(folder_ / "lib/libm.so.6");
  fs::create_directory_symlink("/usr/lib", folder_ / "lib/glibc-hwcaps");
  EXPECT_THAT(refused(), HasSubstr("lib/glibc-hwcaps"));
}

TEST_F(BundleFilesTest, ManifestsThatLeadElsewhere_AreRefused) {
  const Json good = Json::parse(TempFolder::read(folder_ / kManifestName));
  for (const char* name : {"../rank", "/bin/true", "lib/../rank", "./rank", ""}) {
    Json bad = good;
    bad["files"][name] = bad["files"]["rank"];
    folder_.write(kManifestName, bad.dump());
    EXPECT_THAT(refused(), HasSubstr("manifest.json"));
  }
  for (const char* text :
       {"[]", "{\"version\": 2}", "{\"version\": 1, \"files\": {}}", "{\"version\": 2, \"files\": 3}",
        "{\"version\": 2, \"files\": {\"rank\": {\"bytes\": -1, \"sha256\": \"\"}}}"}) {
    folder_.write(kManifestName, text);
    EXPECT_THAT(refused(), HasSubstr("manifest.json")) << text;
  }
}

// Whoever proves it says what is wrong with it; a certificate is of the manifest as it is.
TEST_F(BundleFilesTest, AnEditedManifest_IsRefusedWhereNothingProvesIt) {
  EXPECT_TRUE(seal_bundle(folder_.path(), {{"version", kManifestVersion}, {"seed", 1}, {"flops", 0.1}}).ok());
  EXPECT_TRUE(opened().ok()) << opened();
  Json edited = Json::parse(TempFolder::read(folder_ / kManifestName));
  edited["seed"] = 2;
  folder_.write(kManifestName, edited.dump(2) + "\n");
  EXPECT_THAT(refused(), HasSubstr("manifest.json' is not as it was written"));
  auto files = BundleFiles::open_unproved(folder_.path());
  ASSERT_TRUE(files.ok());
  Json paper = {{"version", kCertificateVersion}, {"root", (*files)->root()}};
  paper["sha256"] = sha256_hex(as_byte_span(paper.dump(2)));
  folder_.write(kCertificateName, paper.dump(2) + "\n");
  EXPECT_TRUE(opened().ok()) << opened();
}

TEST_F(BundleFilesTest, ACertificate_IsOfItsBundle) {
  const std::string root = (*BundleFiles::open(folder_.path()))->root();
  EXPECT_THAT(refused({.certificate = true}), HasSubstr("certificate.json"));
  Json paper = {{"version", kCertificateVersion}, {"root", root}};
  paper["sha256"] = sha256_hex(as_byte_span(paper.dump(2)));
  folder_.write(kCertificateName, paper.dump(2) + "\n");
  EXPECT_TRUE(opened({.certificate = true}).ok()) << opened({.certificate = true});
  EXPECT_TRUE(seal_bundle(folder_.path(), {{"version", kManifestVersion}, {"seed", 1}}).ok());
  EXPECT_FALSE(fs::exists(folder_ / kCertificateName));  // it was of another bundle
  folder_.write(kCertificateName, paper.dump(2) + "\n");
  EXPECT_THAT(refused(), HasSubstr("of another bundle"));
  paper["root"] = std::string(64, '0');
  folder_.write(kCertificateName, paper.dump(2) + "\n");
  EXPECT_THAT(refused(), HasSubstr("certificate.json' is damaged"));
}

// Also one that JSON does not mind: a letter of a number, a blank.
TEST_F(BundleFilesTest, EachFlipInACertificate_IsSeen) {
  Json paper = {{"version", kCertificateVersion},
                {"root", (*BundleFiles::open(folder_.path()))->root()},
                {"proved", "every state"},
                {"numeric", {{"loss_error", 7.5e-8}}}};
  paper["sha256"] = sha256_hex(as_byte_span(paper.dump(2)));
  const std::string good = paper.dump(2) + "\n";
  folder_.write(kCertificateName, good);
  ASSERT_TRUE(opened().ok()) << opened();
  for (size_t k = 0; k < good.size(); ++k) {
    for (const int bit : {0, 2, 5}) {
      std::string bad = good;
      bad[k] = static_cast<char>(bad[k] ^ (1 << bit));
      folder_.write(kCertificateName, bad);
      EXPECT_THAT(refused(), HasSubstr("certificate.json'")) << k << ", " << bit;
    }
  }
  folder_.write(kCertificateName, good + " ");
  EXPECT_THAT(refused(), HasSubstr("certificate.json' is damaged"));
}

TEST_F(BundleFilesTest, ATrustedKey_HasSignedTheCertificate) {
  const std::string secret = folder_.write("secret.pem", kPrivateKey), key = folder_.write("key.pem", kPublicKey),
                    other = folder_.write("other.pem", kOtherPublicKey);
  Json paper = {{"version", kCertificateVersion}, {"root", (*BundleFiles::open(folder_.path()))->root()}};
  paper["sha256"] = sha256_hex(as_byte_span(paper.dump(2)));
  folder_.write(kCertificateName, paper.dump(2) + "\n");
  EXPECT_THAT(refused({.key = key}), HasSubstr("certificate.sig"));
  auto signature = sign(secret, as_byte_span(paper.dump(2) + "\n"));
  ASSERT_TRUE(signature.ok()) << signature.status();
  folder_.write(kSignatureName, *signature);
  EXPECT_TRUE(opened({.key = key}).ok()) << opened({.key = key});
  EXPECT_THAT(refused({.key = other}), HasSubstr("signature is not of this certificate"));
  EXPECT_THAT(refused({.key = secret}), HasSubstr("expected an Ed25519 public key"));
  EXPECT_THAT(refused({.key = folder_ / "absent.pem"}), HasSubstr("absent.pem"));
  change(kSignatureName, 5);
  EXPECT_THAT(refused({.key = key}), HasSubstr("signature is not of this certificate"));
}

TEST(Signature, KnownAnswer) {
  TempFolder folder;
  const std::string secret = folder.write("secret.pem", kPrivateKey), key = folder.write("key.pem", kPublicKey);
  auto signature = sign(secret, {});
  ASSERT_TRUE(signature.ok()) << signature.status();
  EXPECT_EQ(sha256_hex(as_byte_span(*signature)),
            sha256_hex(as_byte_span(std::string("\xe5\x56\x43\x00\xc3\x60\xac\x72\x90\x86\xe2\xcc\x80\x6e\x82\x8a\x84"
                                                "\x87\x7f\x1e\xb8\xe5\xd9\x74\xd8\x73\xe0\x65"
                                                "\x22\x49\x01\x55\x5f\xb8\x82\x15\x90\xa3\x3b\xac\xc6\x1e\x39\x70\x1c"
                                                "\xf9\xb4\x6b\xd2\x5b\xf5\xf0\x59\x5b\xbe\x24"
                                                "\x65\x51\x41\x43\x8e\x7a\x10\x0b",
                                                64))));
  EXPECT_TRUE(check_signature(key, {}, as_byte_span(*signature)).ok());
  EXPECT_FALSE(check_signature(key, as_byte_span("x"), as_byte_span(*signature)).ok());
  EXPECT_FALSE(check_signature(key, {}, as_byte_span(signature->substr(1))).ok());
  EXPECT_THAT(std::string(sign(key, {}).status().message()), HasSubstr("expected an Ed25519 private key"));
}

}  // namespace
}  // namespace partita::runtime
