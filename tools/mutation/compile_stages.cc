#include "tools/mutation/compile_stages.h"

#include "base/status.h"
#include "tools/flow/bound_inputs.h"
#include "tools/verify/bundle/turned_values.h"
#include "tools/verify/layout/serial_values.h"

namespace partita {
namespace {

absl::StatusOr<verifier::RankProgram> program_of(EmittedProgram emitted) {
  verifier::RankProgram p;
  p.rank = verifier::without_weights(std::move(emitted.claims.graph));
  PARTITA_RETURN_IF_ERROR(verifier::expand_rank(p));
  p.claims = std::move(emitted.claims.steps);
  p.code = verifier::with_turned_values(std::move(p.code), p.claims, p.from);
  p.nests = std::move(emitted.claims.nests);
  p.program = std::move(emitted.program);
  return p;
}

}  // namespace

absl::StatusOr<verifier::Bundle> compile_stages(const Partition& partition, const std::vector<LocalProgram>& stages,
                                                const TargetOptions& target) {
  PassRun run = PassRun::unchecked();
  PARTITA_ASSIGN_OR_RETURN(auto emitted, emit_programs(stages, target, EmitUntil::kCode, run));
  verifier::Bundle bundle;
  bundle.serial = verifier::without_weights(*partition.training.graph);
  bundle.samples = partition.model.batch.graph_batch * partition.model.batch.micro_batches;
  std::vector<runtime::Program> programs;
  for (EmittedProgram& e : emitted) programs.push_back(std::move(e.program));
  bound_inputs(bundle.serial, programs);
  for (size_t k = 0; k < programs.size(); ++k) {
    emitted[k].program = std::move(programs[k]);
    PARTITA_ASSIGN_OR_RETURN(verifier::RankProgram p, program_of(std::move(emitted[k])));
    bundle.programs.push_back(std::move(p));
  }
  return bundle;
}

}  // namespace partita
