// Faults that splits have had in public threads: the verifier rejects each, and says what is wrong.
#include "tools/mutation/field_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/temp_folder.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

using ::testing::HasSubstr;

TEST(FieldFaults, AreRejectedByTheirCause) {
  TempFolder folder;
  ASSERT_TRUE(write_field_models(folder.path()).ok());
  const std::string page = TempFolder::read(std::string(PARTITA_TEST_DATA) + "/../../docs/field_faults.md");
  std::map<std::string, verifier::Bundle> sound;  // by model and layout
  for (const FieldFault& f : field_faults()) {
    SCOPED_TRACE(f.name);
    const auto [at, fresh] = sound.try_emplace(std::string(f.model) + std::string(f.layout));
    if (fresh) {
      auto as_it_is = compile_field(f, folder.path(), false);
      ASSERT_TRUE(as_it_is.ok()) << as_it_is.status();
      at->second = *std::move(as_it_is);
      EXPECT_TRUE(verifier::check_bundle(at->second).ok()) << verifier::check_bundle(at->second).status();
    }
    verifier::Bundle broken = at->second;
    if (f.in_programs != nullptr) {
      ASSERT_TRUE(f.in_programs(broken));
    } else {
      auto compiled = compile_field(f, folder.path(), true);
      ASSERT_TRUE(compiled.ok()) << compiled.status();
      broken = *std::move(compiled);
    }
    const absl::Status verdict = verifier::check_bundle(broken).status();
    EXPECT_EQ(verdict.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(verdict.message()), HasSubstr(std::string(f.message)));
    for (std::string_view told : {f.name, f.thread, f.message}) EXPECT_THAT(page, HasSubstr(std::string(told)));
  }
}

}  // namespace
}  // namespace partita
