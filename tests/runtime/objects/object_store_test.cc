#include "runtime/objects/object_store.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/objects/s3_settings.h"
#include "tests/runtime/objects/held_server.h"
#include "tests/runtime/objects/s3_server.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> counting(size_t n) {
  std::vector<std::byte> bytes(n);
  for (size_t k = 0; k < n; ++k) bytes[k] = static_cast<std::byte>(k * 7 + k / 251);
  return bytes;
}

// What every store does.
void check_store(ObjectStore& store) {
  const std::vector<std::byte> large = counting((33 << 20) + 5), small = counting(1000);
  auto put = [&](const std::string& name, std::span<const std::byte> bytes) {
    const absl::Status s = store.put(name, bytes);
    EXPECT_TRUE(s.ok()) << s;
  };
  put("a/large", large);
  put("a/b/small", small);
  put("a/b/small", std::span(small).first(900));
  put("with blank+and=&<marks>~", {});
  auto names = [&](const std::string& prefix) {
    std::vector<std::string> out;
    const auto found = store.list(prefix);
    EXPECT_TRUE(found.ok()) << found.status();
    for (const auto& o : found.ok() ? *found : std::vector<ObjectInfo>()) out.push_back(cat(o.name, ":", o.bytes));
    return out;
  };
  EXPECT_THAT(names("a/"), ElementsAre("a/b/small:900", cat("a/large:", large.size())));
  EXPECT_THAT(names("w"), ElementsAre("with blank+and=&<marks>~:0"));
  EXPECT_THAT(names("nothing"), ElementsAre());
  std::vector<std::byte> part(17 << 20);
  const absl::Status read = store.read("a/large", 16'777'000, part);
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_TRUE(std::equal(part.begin(), part.end(), large.begin() + 16'777'000));
  EXPECT_FALSE(store.read("a/b/small", 890, std::span(part).first(11)).ok());
  const absl::Status none = store.read("a/none", 0, std::span(part).first(1));
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound) << none;
  EXPECT_TRUE(store.remove("a/large").ok());
  EXPECT_TRUE(store.remove("a/none").ok());
  EXPECT_THAT(names("a/"), ElementsAre("a/b/small:900"));
}

TEST(ObjectStore, AFolder) {
  const TempFolder folder;
  auto store = open_object_store(folder / "store", {}, nullptr);
  ASSERT_TRUE(store.ok()) << store.status();
  check_store(**store);
}

TEST(ObjectStore, ABucket) {
  if (!std::filesystem::exists(python())) GTEST_SKIP() << "no " << python() << ": run tools/install_test_services";
  const S3Server server(5);
  auto store = open_object_store("s3://bucket/some prefix", server.environment(), nullptr);
  ASSERT_TRUE(store.ok()) << store.status();
  check_store(**store);
  // Refusals are told as the server says them, and not tried again.
  auto environment = server.environment();
  environment["AWS_SECRET_ACCESS_KEY"] = "another";
  store = open_object_store("s3://bucket", environment, nullptr);
  ASSERT_TRUE(store.ok());
  const absl::Status refused = (*store)->put("x", counting(3));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("403 SignatureDoesNotMatch"), HasSubstr("s3://bucket/x")));
  store = open_object_store("s3://no-such-bucket", server.environment(), nullptr);
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->list("").status().code(), absl::StatusCode::kNotFound);
}

TEST(ObjectStore, AServerThatIsGone) {
  if (!std::filesystem::exists(python())) GTEST_SKIP() << "no " << python() << ": run tools/install_test_services";
  const EnvironmentMap environment = {{"AWS_ENDPOINT_URL", cat("http://127.0.0.1:", free_port())}};
  Transfers transfers;
  auto store = open_object_store("s3://bucket", environment, &transfers);
  ASSERT_TRUE(store.ok()) << store.status();
  std::thread soon([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    transfers.give_up = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ((*store)->put("x", counting(3)).code(), absl::StatusCode::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  soon.join();
}

// Else a run would begin anew where a proxy's page or a half answer stands for an empty bucket.
TEST(ObjectStore, WhatIsNoListing_IsNotAnEmptyBucket) {
  const std::string entry = "<Contents><Key>a</Key><Size>1</Size></Contents>", more = "<IsTruncated>true</IsTruncated>";
  for (const std::string& answer :
       {std::string("<html>Please log in</html>"), std::string(), cat("<ListBucketResult>", entry),
        cat("<ListBucketResult>", entry, more, "</ListBucketResult>"),
        cat("<ListBucketResult>", more, "<NextContinuationToken>t</NextContinuationToken></ListBucketResult>")}) {
    SCOPED_TRACE(answer);
    HeldServer server(answer);
    auto store = open_object_store("s3://bucket", server.environment(), nullptr);
    ASSERT_TRUE(store.ok()) << store.status();
    const absl::Status refused = (*store)->list("").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("expected the listing of an S3 bucket"));
  }
}

// The environment comes before the files, and a file's section before its others.
TEST(ObjectStore, SettingsAreThoseOfTheAwsTools) {
  const TempFolder home;
  std::filesystem::create_directories(home / ".aws");
  home.write(".aws/credentials",
             "[default]\naws_access_key_id = A\naws_secret_access_key = B=\n\n"
             "# another\n[work]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\n");
  home.write(".aws/config",
             "[default]\nregion = eu-west-1\ns3 =\n  region = nested\n[profile work]\nregion = eu-north-1\n"
             "endpoint_url = https://store.example/\n");
  auto read = [&](EnvironmentMap environment) {
    environment["HOME"] = home.path();
    return read_s3_settings(environment);
  };
  auto s = read({});
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_THAT((std::vector{s->key_id, s->secret, s->token, s->region, s->endpoint}),
              ElementsAre("A", "B=", "", "eu-west-1", ""));
  s = read({{"AWS_PROFILE", "work"}});
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_THAT((std::vector{s->key_id, s->secret, s->token, s->region, s->endpoint}),
              ElementsAre("C", "D", "E", "eu-north-1", "https://store.example"));
  s = read({{"AWS_ACCESS_KEY_ID", "F"},
            {"AWS_SECRET_ACCESS_KEY", "G"},
            {"AWS_REGION", "r"},
            {"AWS_ENDPOINT_URL", "http://h:1"}});
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_THAT((std::vector{s->key_id, s->secret, s->token, s->region, s->endpoint}),
              ElementsAre("F", "G", "", "r", "http://h:1"));
  EXPECT_THAT(std::string(read({{"AWS_PROFILE", "none"}}).status().message()), HasSubstr("'none'"));
  EXPECT_THAT(std::string(read({{"AWS_ACCESS_KEY_ID", "F"}}).status().message()), HasSubstr("no secret key"));
  EXPECT_THAT(std::string(read({{"AWS_ENDPOINT_URL", "h:1"}}).status().message()), HasSubstr("https://"));
}

}  // namespace
}  // namespace partita::runtime
