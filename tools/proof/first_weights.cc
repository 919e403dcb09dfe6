#include "tools/proof/first_weights.h"

#include <set>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/bundle_names.h"

namespace partita {

absl::Status check_first_weights(const runtime::BundleFiles& files, const verifier::Bundle& bundle) {
  PARTITA_ASSIGN_OR_RETURN(auto sealed, files.file(runtime::kInitialName));
  PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile first, runtime::SafetensorsFile::open(std::move(sealed)));
  std::set<std::string> read;
  auto expected = [&](const std::string& name, const auto&... what) {
    return absl::AbortedError(cat(quote(runtime::kInitialName), ": ", quote(name, 200), ": expected ", what...));
  };
  for (const verifier::RankProgram& p : bundle.programs) {
    for (const runtime::ProgramState& s : p.program.states) {
      if (s.initial.kind != runtime::InitialKind::kFile || !read.insert(s.name).second) continue;
      const std::string type = cat(dtype_name(s.operand.dtype), runtime::shape_text(s.placement.logical));
      const runtime::SafetensorsEntry* entry = first.find(s.name);
      if (entry == nullptr) return expected(s.name, type, ", found none");
      if (entry->dtype != s.operand.dtype || entry->shape != s.placement.logical)
        return expected(s.name, type, ", found ", entry->dtype_text, runtime::shape_text(entry->shape));
    }
  }
  for (const runtime::SafetensorsEntry& entry : first.entries()) {
    if (read.count(entry.name) == 0) return expected(entry.name, "no such tensor: no state begins with it");
  }
  return absl::OkStatus();
}

}  // namespace partita
