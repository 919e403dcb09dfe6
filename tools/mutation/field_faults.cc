#include "tools/mutation/field_faults.h"

namespace partita {
namespace {

// The last norm and the head are the second stage.
constexpr const char* kTwoStages = "pin pipeline=2 pin cuts=[transformer.ln_f.weight]";

constexpr FieldFault kFaults[] = {
    // Sums over ranks.
    {"a norm's gradient is not summed over the ranks that split its tokens",
     "megatron#1446, megatron#7452 (11), TrainCheck (DS-1801)", "gpt", "pin tensor=2 pin sequence_parallel=true",
     "sum partial over tensor", field::norm_unsummed},
    {"a norm's gradient is summed twice over them", "megatron#1528", "gpt", "pin tensor=2 pin sequence_parallel=true",
     "it is reduced over an axis along which it is not partial", field::norm_summed_twice},
    {"a product over split features is not summed", "pytorch#144359, llm-infra-verifier RB1a", "gpt", "pin tensor=2",
     "expected all operands that are summed to be partial over tensor", field::product_unsummed},
    {"a bias is added on every rank, before the sum", "pytorch#144359, llm-infra-verifier RB1b", "gpt", "pin tensor=2",
     "expected all operands that are summed to be partial over tensor", field::bias_on_each_rank},
    {"a router's gradient is not summed", "megatron#599, torchtitan#2416", "moe", "pin expert=2",
     "sum partial over expert", field::router_unsummed},
    {"a router's gradient is counted twice", "megatron#7452 (10), transformers#48687", "moe", "pin expert=2",
     "it is reduced over an axis along which it is not partial", field::router_counted_twice},
    {"ranks with different experts sum their gradients", "megatron#5916, megatron#1628", "moe", "pin expert=2",
     "expert (2:8192): it is reduced over an axis along which it is not partial", field::experts_mixed},
    {"the experts' balance is one of a rank's own tokens", "megatron#7452 (10)", "moe", "pin expert=2",
     "sum partial over expert", field::balance_of_own_tokens},
    {"gradients are summed over another group of ranks", "megatron#7452 (5, 6, 7)", "gpt", "pin tensor=2 pin data=2",
     "expected group 2, over [0,1] and of channel 0, found group 0 over [1]", nullptr, field::other_group},
    {"a tied weight's gradient is that of one stage alone", "megatron#656, megatron#844", "gpt", kTwoStages,
     "expected a reader of a whole sum over the stages, found one of a part of it", field::tied_on_one_side},
    // Scales.
    {"each rank's loss is a mean over its own tokens", "megatron#673, megatron#906, torchtitan#2318", "gpt",
     "like ddp pin data=2", "sum partial over data,time", field::mean_of_own_tokens},
    {"the clipping norm counts what ranks hold alike on each", "megatron#6099, megatron#6470", "gpt", "pin tensor=2",
     "expected all operands that are summed to be partial over tensor", field::norm_counts_replicas},
    {"the clipping norm lacks what other ranks hold", "megatron#5916, torchtitan#596", "gpt", "pin tensor=2",
     "expected the complete sum over tensor, since the op is not linear in it", field::norm_of_own_part},
    {"the clipping norm lacks what other stages hold", "torchtitan#596", "gpt", kTwoStages,
     "output 'grad_norm' of stage 1: expected what an earlier stage computes", field::norm_of_own_part},
    {"the clipping norm takes a split gradient for one that ranks hold alike", "megatron#7452 (8)", "gpt",
     "pin tensor=2", "sum partial over tensor", field::norm_without_a_part},
    // Parts.
    {"each rank looks up the embedding rows of the first", "megatron#7452 (7)", "gpt", "pin tensor=2",
     "expected a slice by the coordinate along an axis of 2 ranks, found another index", field::rows_of_first_rank},
    {"each rank has the positions of the first", "megatron#4382", "gpt", "pin context=2",
     "expected a slice by the coordinate along an axis of 2 ranks, found another index",
     field::positions_of_first_rank},
    {"each rank masks its tokens as the first", "megatron#4382, megatron#7452 (5)", "gpt", "pin context=2",
     "expected a slice by the coordinate along an axis of 2 ranks, found another index", field::labels_of_first_rank},
    {"rows that pad the vocabulary count in the loss", "pytorch#175690", "odd", "pin tensor=2",
     "expected no serial node does this to these values", field::statistics_unmasked},
    {"all ranks read the same samples", "anemoi-core#595", "gpt", "like ddp pin data=2",
     "input 'input_ids': the ranks' boxes overlap or leave something out", nullptr, field::same_samples},
    // Random numbers.
    {"ranks with other samples draw one dropout mask", "transformers#31412, megatron#1256", "dropout", "pin data=2",
     "('Dropout \\'node_dropout_5\\''): expected a slice by the coordinate along an axis of 2 ranks",
     field::masks_alike},
    {"ranks that hold an activation alike draw masks of their own", "Megatron-DeepSpeed#276, megatron#206", "dropout",
     "pin tensor=2", "'tensor' i64[] = no value of the serial program", field::masks_apart},
    // States and updates.
    {"a matrix is gathered before it is updated", "megatron#950, megatron#663", "muon", "like zero1 pin data=2",
     "expected no serial node does this to these values", field::stale_gather},
    {"each rank updates the first rank's part", "megatron#844", "gpt", "like zero1 pin data=2",
     "the ranks' boxes overlap or leave something out", nullptr, field::update_of_first_part},
    {"a step takes the last micro-batch's gradient alone", "torchtitan#3412", "gpt", "like ddp pin data=2",
     "expected a value that all ranks have of one micro-batch", field::last_micro_batch_alone},
    {"a gradient goes on from the last step's", "megatron#4609, TrainCheck (zero_grad)", "gpt", "like ddp pin data=2",
     "it is of another kind than in the serial program", field::gradient_not_reset},
    {"a parameter is left out of the update", "TrainCheck (forum 84911)", "gpt", "like ddp pin data=2",
     "after the step: expected it changed", field::parameter_left_out},
    {"replicas begin with other weights", "TrainCheck (DS-1801)", "gpt", "like ddp pin data=2",
     "expected another first value", nullptr, field::other_first_values},
    // What runs at the same time.
    {"a collective is not waited for", "llm-infra-verifier RB4a", "gpt", "like zero3 pin data=2",
     "found the result of step 0, which is not waited for", nullptr, field::no_wait},
    {"a collective's result is read before its wait", "megatron#7398, TransformerEngine#1616", "gpt",
     "like zero3 pin data=2", "found the result of step 0, which is not waited for", nullptr, field::reads_early},
    {"a buffer is used again while a collective writes it", "llm-infra-verifier RB4b, megatron#6187", "gpt",
     "like zero3 pin data=2", "expected memory that nobody uses", nullptr, field::buffer_reused},
    {"an operand is overwritten while a collective reads it", "megatron#4047", "gpt", "like zero3 pin data=2",
     "expected memory that nobody uses", nullptr, field::operand_overwritten},
    {"the host reads what is still to be copied to it", "megatron#7398", "gpt", "pin offload=optimizer gpu sm_90",
     "operand 0: expected value %4 'transformer.wte.weight'", nullptr, field::reload_first},
    // Pipelines.
    {"stages take micro-batches in other orders", "megatron#3952", "gpt", kTwoStages,
     "of micro-batch 0, found value %80 'loss' f32[] of micro-batch 1", nullptr, field::other_order},
    {"a stage receives from another than sends to it", "megatron#1525", "gpt", kTwoStages,
     "expected parameter 'peer' as its node has it, found another", nullptr, field::other_peer},
    {"an activation is overwritten by the next micro-batch's", "megatron#4047", "gpt",
     "pin pipeline=2 pin cuts=[transformer.ln_f.weight] pin schedule=gpipe",
     "of micro-batch 0, found value %122 'mul_59' f32[4,16,128] of micro-batch 3", nullptr, field::one_slot},
    {"a backward part reads newer weights than its forward part", "PipeDream (weight stashing)", "untied",
     "pin pipeline=2 pin schedule=pipedream", "of micro-batch 0, found nothing that is one value", nullptr,
     field::stale_stash},
};

}  // namespace

std::span<const FieldFault> field_faults() { return kFaults; }

}  // namespace partita
