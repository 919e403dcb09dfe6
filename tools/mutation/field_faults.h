// Faults of the field: splits that were silently wrong, as public threads and papers tell them, in words of this
// program. A compiler that made one of them would make a whole bundle of it: the ranks' graphs are changed as the split
// leaves them, and code, steps and claims follow from them; or, where the fault is one of steps, buffers and schedules,
// the program is changed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/localize/local_program.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

struct FieldFault {
  std::string_view name;     // what is wrong
  std::string_view thread;   // where it, or one like it, is told: "megatron" is NVIDIA/Megatron-LM
  std::string_view model;    // of write_field_models(): its file's name
  std::string_view layout;   // flags of `partita compile`, without the dashes: "pin tensor=2 pin data=2"
  std::string_view message;  // what the verifier says, a part of it
  // One of the two; false where there is nothing of the kind.
  bool (*in_graphs)(std::vector<LocalProgram>& stages) = nullptr;
  bool (*in_programs)(verifier::Bundle& bundle) = nullptr;
};
std::span<const FieldFault> field_faults();

// The small models of the faults, in an existing folder.
absl::Status write_field_models(const std::string& folder);
// Compiles a fault's model in its layout, in memory, with the fault in it or as it should be. NotFound where there is
// nothing of the kind in it.
absl::StatusOr<verifier::Bundle> compile_field(const FieldFault& fault, const std::string& folder, bool faulty);

// What field_faults() lists. Of graphs (field_graph_faults.cc):
namespace field {
bool norm_unsummed(std::vector<LocalProgram>& stages);
bool norm_summed_twice(std::vector<LocalProgram>& stages);
bool product_unsummed(std::vector<LocalProgram>& stages);
bool bias_on_each_rank(std::vector<LocalProgram>& stages);
bool rows_of_first_rank(std::vector<LocalProgram>& stages);
bool norm_counts_replicas(std::vector<LocalProgram>& stages);
bool norm_of_own_part(std::vector<LocalProgram>& stages);
bool norm_without_a_part(std::vector<LocalProgram>& stages);
bool router_unsummed(std::vector<LocalProgram>& stages);
bool router_counted_twice(std::vector<LocalProgram>& stages);
bool experts_mixed(std::vector<LocalProgram>& stages);
bool balance_of_own_tokens(std::vector<LocalProgram>& stages);
bool stale_gather(std::vector<LocalProgram>& stages);
bool mean_of_own_tokens(std::vector<LocalProgram>& stages);
bool last_micro_batch_alone(std::vector<LocalProgram>& stages);
bool gradient_not_reset(std::vector<LocalProgram>& stages);
bool parameter_left_out(std::vector<LocalProgram>& stages);
bool positions_of_first_rank(std::vector<LocalProgram>& stages);
bool labels_of_first_rank(std::vector<LocalProgram>& stages);
bool tied_on_one_side(std::vector<LocalProgram>& stages);
bool masks_alike(std::vector<LocalProgram>& stages);
bool masks_apart(std::vector<LocalProgram>& stages);
bool statistics_unmasked(std::vector<LocalProgram>& stages);

// Of programs (field_program_faults.cc):
bool no_wait(verifier::Bundle& bundle);
bool reads_early(verifier::Bundle& bundle);
bool buffer_reused(verifier::Bundle& bundle);
bool operand_overwritten(verifier::Bundle& bundle);
bool reload_first(verifier::Bundle& bundle);
bool other_order(verifier::Bundle& bundle);
bool other_peer(verifier::Bundle& bundle);
bool one_slot(verifier::Bundle& bundle);
bool stale_stash(verifier::Bundle& bundle);
bool same_samples(verifier::Bundle& bundle);
bool update_of_first_part(verifier::Bundle& bundle);
bool other_first_values(verifier::Bundle& bundle);
bool other_group(verifier::Bundle& bundle);
}  // namespace field

}  // namespace partita
