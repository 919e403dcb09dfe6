#include "passes/pipeline.h"

#include <chrono>
#include <filesystem>
#include <iterator>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "ir/text/print.h"
#include "passes/forward/allow_tf32.h"
#include "passes/forward/attach_loss.h"
#include "passes/forward/choose_attention.h"
#include "passes/forward/divide_experts.h"
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
#include "passes/training/recompute.h"
#include "passes/training/update_statistics.h"

namespace partita {
namespace {

constexpr Pass kTrainingPipeline[] = {
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
     "so that the blocks see the whole forward graph, and outputs that nobody asks for are dead"},
    {"tag_blocks", tag_blocks, "on the forward graph: gradients inherit their node's block"},
    {"mixed_precision", mixed_precision,
     "on whole composites, which keep their statistics in f32; gradients follow through the casts"},
    {"narrow_frozen", narrow_frozen, "on the part that evaluation has too: both hold the same states"},
    {"build_backward", build_backward, "gradients of composites are far cheaper than those of their spellings",
     Phase::kTraining},
    {"update_statistics", update_statistics, "beside the gradients' accumulators", Phase::kTraining},
    {"merge_duplicates", merge_duplicates, "gradients recompute what the forward part has", Phase::kTraining},
    {"simplify", simplify, "gradients of views are views of views", Phase::kTraining},
    {"remove_dead_nodes", remove_dead_nodes, "gradients of masks, tables and indices that nobody asked for",
     Phase::kTraining},
    {"allow_tf32", allow_tf32, "gradients' products too, once they are all there", Phase::kTraining},
    {"recompute", recompute, "on the final backward part; no later pass takes equal nodes for one", Phase::kTraining},
    {"build_optimizer", build_optimizer, "updates read the final gradients", Phase::kTraining},
};
constexpr size_t kForwardPasses = 14;  // up to the loss

// Evaluation: the forward passes, then what becomes of the loss.
constexpr Pass kEvaluationEnd[] = {
    {"mixed_precision", mixed_precision, "evaluation computes as training does"},
    {"narrow_frozen", narrow_frozen, "evaluation reads the states of training"},
    {"allow_tf32", allow_tf32, "evaluation computes as training does", Phase::kTraining},
    {"build_evaluation", build_evaluation, "the loss is there", Phase::kTraining},
    {"remove_dead_nodes", remove_dead_nodes, "outputs that only training asks for", Phase::kTraining},
};

// "NAME#2" for the second of a name; the first has the plain name.
std::string pass_name(std::span<const Pass> passes, size_t index) {
  int count = 1;
  for (size_t k = 0; k < index; ++k) count += passes[k].name == passes[index].name;
  return count == 1 ? std::string(passes[index].name) : cat(passes[index].name, "#", count);
}

// Writes the texts that differ from the last one.
class Dump {
 public:
  explicit Dump(const std::string& folder) : folder_(folder) {}

  absl::Status start(const Graph& graph) {
    if (folder_.empty()) return absl::OkStatus();
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) return absl::InvalidArgumentError(cat("folder for dumps ", quote(folder_, 200), ": ", error.message()));
    return write("start", graph);
  }

  absl::Status write(const std::string& name, const Graph& graph) {
    if (folder_.empty()) return absl::OkStatus();
    std::string text = print(graph, TextMode::kDump);
    size_t number = number_++;
    if (text == last_) return absl::OkStatus();
    last_ = std::move(text);
    return write_file_atomically(fmt::format("{}/{:02}-{}.txt", folder_, number, name), last_, Durable::kNo);
  }

 private:
  std::string folder_, last_;
  size_t number_ = 0;
};

}  // namespace

std::span<const Pass> training_pipeline() { return kTrainingPipeline; }
std::vector<Pass> evaluation_pipeline() {
  std::vector<Pass> passes(std::begin(kTrainingPipeline), std::begin(kTrainingPipeline) + kForwardPasses);
  passes.insert(passes.end(), std::begin(kEvaluationEnd), std::end(kEvaluationEnd));
  return passes;
}
std::span<const Pass> forward_pipeline() { return std::span(kTrainingPipeline).first(kForwardPasses); }

absl::StatusOr<Graph> run_passes(std::span<const Pass> passes, Graph graph, PassContext& context,
                                 const PassOptions& options) {
  size_t end = passes.size();
  if (!options.stop_after.empty()) {
    std::string known;
    for (size_t k = 0; k < passes.size(); ++k) {
      std::string name = pass_name(passes, k);
      if (name == options.stop_after) end = std::min(end, k + 1);
      append(known, k == 0 ? "" : ", ", name);
    }
    bool found = end < passes.size() || pass_name(passes, passes.size() - 1) == options.stop_after;
    if (!found)
      return absl::InvalidArgumentError(
          cat("stop after: no pass ", quote(options.stop_after, 100), "; the passes are ", known));
  }
  Dump dump(options.dump_folder);
  PARTITA_RETURN_IF_ERROR(dump.start(graph));
  for (size_t k = 0; k < end; ++k) {
    std::string name = pass_name(passes, k);
    int64_t before = static_cast<int64_t>(graph.nodes.size());
    auto start = std::chrono::steady_clock::now();
    PARTITA_ASSIGN_OR_RETURN(graph, passes[k].function(graph, context));
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (options.verify) {
      absl::Status sound = verify(graph, passes[k].phase);
      if (!sound.ok()) return absl::InternalError(cat("after pass ", name, ": ", std::string(sound.message())));
    }
    if (options.times) options.times->push_back({name, took.count(), before, static_cast<int64_t>(graph.nodes.size())});
    PARTITA_RETURN_IF_ERROR(dump.write(name, graph));
  }
  return graph;
}

std::string format_pass_times(std::span<const PassTime> times) {
  std::string text = fmt::format("{:<28} {:>10} {:>10} {:>10}\n", "pass", "ms", "nodes", "change");
  double total = 0;
  for (const PassTime& t : times) {
    text += fmt::format("{:<28} {:>10.2f} {:>10} {:>+10}\n", t.name, t.seconds * 1e3, t.nodes_after,
                        t.nodes_after - t.nodes_before);
    total += t.seconds;
  }
  return text + fmt::format("{:<28} {:>10.2f}\n", "total", total * 1e3);
}

}  // namespace partita
