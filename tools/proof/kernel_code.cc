#include "tools/proof/kernel_code.h"

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/llvm/object_code.h"
#include "codegen/nvptx/assembler.h"
#include "codegen/nvptx/device_code.h"
#include "runtime/program/sides.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {
namespace {

using Bytes = std::vector<uint8_t>;

std::vector<NamedNest> nests_of(const KernelNests& all, bool host) {
  std::vector<NamedNest> nests;
  for (const KernelNest& k : all.kernels) {
    if (k.host == host) nests.push_back({k.name, &k.nest, k.batched});
  }
  return nests;
}

// PTX without how many blocks of a kernel a multiprocessor is to have, which is asked anew once the assembler has said
// that it needs more registers.
std::string without_requests(std::string_view ptx) {
  constexpr std::string_view kRequest = "\n.minnctapersm ";
  std::string text(ptx);
  for (size_t at = 0; (at = text.find(kRequest, at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_not_of("0123456789", at + kRequest.size()), text.size());
    const bool alone = end > at + kRequest.size() && (end == text.size() || text[end] == '\n');
    if (alone) text.erase(at, end - at);
    at += alone ? 0 : 1;  // whatever else such a line has is compared
  }
  return text;
}

class CodeChecker {
 public:
  absl::Status check(const verifier::ProgramSet& set) {
    for (const verifier::RankProgram& p : set.programs) {
      const absl::Status status = p.nests.compiler == compiler_name() ? check(p) : absl::OkStatus();
      if (!status.ok()) return status;
      if (p.nests.compiler != compiler_name())
        say(cat("compiled by ", quote(p.nests.compiler, 80), ", this is ", compiler_name()));
    }
    return absl::OkStatus();
  }
  KernelCode code() { return std::move(code_); }

 private:
  void say(std::string why) {
    if (code_.unknown.empty()) code_.unknown = std::move(why);
  }

  absl::Status check(const verifier::RankProgram& p) {
    const runtime::Program& program = p.program;
    const std::vector<NamedNest> host = nests_of(p.nests, true), own = nests_of(p.nests, false);
    if (!runtime::needs_device(program)) return check_host(p.nests, own, p.nests.target, program.kernels);
    PARTITA_RETURN_IF_ERROR(check_host(p.nests, host, kHostOfGpus, program.host_kernels));
    return check_device(p.nests, own, program);
  }

  // Equal programs of stages are compiled once.
  absl::Status check_host(const KernelNests& all, const std::vector<NamedNest>& nests, const std::string& cpu,
                          const Bytes& found) {
    if (nests.empty()) return same({}, found, "no kernels");
    const std::string key = cat(cpu, "\n", print_kernels(all));
    auto made = made_.find(key);
    if (made == made_.end()) {
      PARTITA_ASSIGN_OR_RETURN(Bytes bytes, compile_nests(nests, cpu));
      made = made_.emplace(key, std::move(bytes)).first;
    }
    PARTITA_RETURN_IF_ERROR(same(made->second, found, "the kernels' code"));
    code_.compiled += static_cast<int64_t>(nests.size());
    return absl::OkStatus();
  }

  absl::Status check_device(const KernelNests& all, const std::vector<NamedNest>& nests,
                            const runtime::Program& program) {
    if (nests.empty()) return same({}, program.portable_kernels, "no kernels");
    const std::string_view ptx(reinterpret_cast<const char*>(program.portable_kernels.data()),
                               program.portable_kernels.size());
    PARTITA_ASSIGN_OR_RETURN(const std::string made, device_text(nests, all.target));
    PARTITA_RETURN_IF_ERROR(
        same(bytes_of(without_requests(made)), bytes_of(without_requests(ptx)), "the kernels' PTX"));
    code_.compiled += static_cast<int64_t>(nests.size());
    if (program.kernels.empty()) return absl::OkStatus();
    auto assembler = find_assembler();
    if (!assembler.ok()) {
      say("no ptxas is here to assemble the PTX again, which is equal");
      return absl::OkStatus();
    }
    PARTITA_ASSIGN_OR_RETURN(const Assembled assembled, assemble_ptx(std::string(ptx), {all.target, *assembler}));
    if (assembled.cubin != program.kernels) say("this ptxas makes other code of the PTX, which is equal");
    return absl::OkStatus();
  }

  static Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

  static absl::Status same(const Bytes& expected, const Bytes& found, std::string_view what) {
    if (expected == found) return absl::OkStatus();
    const auto at = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
    return absl::AbortedError(cat("expected ", what, " as compiled from their nests, ", expected.size(),
                                  " bytes, found ", found.size(), ", other ones from byte ",
                                  at.first - expected.begin(),
                                  " on; compile the bundle again where another build of this version made it"));
  }

  KernelCode code_;
  std::map<std::string, Bytes> made_;
};

}  // namespace

absl::StatusOr<KernelCode> compile_again(const verifier::Bundle& bundle) {
  CodeChecker checker;
  PARTITA_RETURN_IF_ERROR(checker.check(bundle));
  if (bundle.evaluation) PARTITA_RETURN_IF_ERROR(checker.check(*bundle.evaluation));
  return checker.code();
}

}  // namespace partita
