#include "passes/pipeline.h"

#include "passes/forward/allow_tf32.h"
#include "passes/forward/attach_loss.h"
#include "passes/forward/choose_attention.h"
#include "passes/forward/choose_fp8.h"
#include "passes/forward/divide_experts.h"
#include "passes/forward/fix_order.h"
#include "passes/forward/mixed_precision.h"
#include "passes/forward/narrow_frozen.h"
#include "passes/forward/tag_blocks.h"
#include "passes/recognize/recognize_activation.h"
#include "passes/recognize/recognize_attention.h"
#include "passes/recognize/recognize_cross_entropy.h"
#include "passes/recognize/recognize_dispatch.h"
#include "passes/recognize/recognize_grouped_matmul.h"
#include "passes/recognize/recognize_norm.h"
#include "passes/recognize/recognize_rotary.h"
#include "passes/rewrite/clean_up.h"
#include "passes/training/build_backward.h"
#include "passes/training/build_evaluation.h"
#include "passes/training/build_optimizer.h"
#include "passes/training/expand_fp8.h"
#include "passes/training/recompute.h"
#include "passes/training/update_statistics.h"

namespace partita {
namespace {

constexpr Pass kGraphPasses[] = {
    {"merge_duplicates", merge_duplicates,
     "exporters repeat shape arithmetic and masks in every layer; patterns count uses"},
    {"simplify", simplify, "patterns need not look through x * 1 or a reshape of a reshape"},
    {"remove_dead_nodes", remove_dead_nodes, "a dead reader is not a use"},
    {"recognize_rotary", recognize_rotary, "before attention: the rotated queries and keys are its operands"},
    {"recognize_attention", recognize_attention,
     "before norms and activations: it asks least of its surroundings and drops whole masks"},
    {"recognize_norm", recognize_norm,
     "one kernel with saved statistics in place of six, and no squares kept for the backward"},
    {"recognize_activation", recognize_activation, "one elementwise op whose gradient needs its input alone"},
    {"recognize_cross_entropy", recognize_cross_entropy, "probabilities over the vocabulary are never stored"},
    {"recognize_grouped_matmul", recognize_grouped_matmul, "no copy of an expert's weights for each of its tokens"},
    {"recognize_dispatch", recognize_dispatch,
     "tokens are looked up where one-hot products would send them to experts"},
    {"merge_duplicates", merge_duplicates,
     "masks and tables that the recognisers made for each layer become shared again"},
    {"divide_experts", divide_experts,
     "once a layer's products choose by one value; their gradients are then in parts by themselves"},
    {"choose_attention", choose_attention,
     "before the loss is differentiated: its gradient is that of what it becomes"},
    {"attach_loss", attach_loss,
     "so that the blocks see the whole forward graph, and outputs that nobody asks for are dead", Phase::kImported,
     PassUse::kLoss},
    {"tag_blocks", tag_blocks, "on the forward graph: gradients inherit their node's block", Phase::kImported,
     PassUse::kTraining},
    {"mixed_precision", mixed_precision,
     "on whole composites, which keep their statistics in f32; gradients follow through the casts", Phase::kImported,
     PassUse::kLoss},
    {"choose_fp8", choose_fp8, "on products in bf16; their gradients are of fp8 numbers too", Phase::kImported,
     PassUse::kLoss},
    {"narrow_frozen", narrow_frozen, "on the part that evaluation has too: both hold the same states", Phase::kImported,
     PassUse::kLoss},
    {"build_backward", build_backward, "gradients of composites are far cheaper than those of their spellings",
     Phase::kTraining, PassUse::kTraining},
    {"update_statistics", update_statistics, "beside the gradients' accumulators", Phase::kTraining,
     PassUse::kTraining},
    {"merge_duplicates", merge_duplicates, "gradients recompute what the forward part has", Phase::kTraining,
     PassUse::kTraining},
    {"simplify", simplify, "gradients of views are views of views", Phase::kTraining, PassUse::kTraining},
    {"remove_dead_nodes", remove_dead_nodes, "gradients of masks, tables and indices that nobody asked for",
     Phase::kTraining, PassUse::kTraining},
    {"expand_fp8", expand_fp8,
     "gradients are there, and nothing takes backward's roundings of weights for those of forward, to keep them",
     Phase::kTraining},
    {"allow_tf32", allow_tf32, "gradients' products too, once they are all there", Phase::kTraining},
    {"fix_order", fix_order, "on convolutions and their gradients alike", Phase::kTraining},
    {"recompute", recompute, "on the final backward part; no later pass takes equal nodes for one", Phase::kTraining,
     PassUse::kTraining},
    {"build_optimizer", build_optimizer, "updates read the final gradients", Phase::kTraining, PassUse::kTraining},
    {"build_evaluation", build_evaluation, "the loss is there, and nothing else will read the forward part",
     Phase::kTraining, PassUse::kEvaluation},
    {"remove_dead_nodes", remove_dead_nodes, "outputs that only training asks for", Phase::kTraining,
     PassUse::kInference},
};

}  // namespace

std::vector<Pass> graph_passes(PassUse use) { return passes_for(std::span<const Pass>(kGraphPasses), use); }

}  // namespace partita
