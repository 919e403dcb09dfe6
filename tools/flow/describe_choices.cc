#include "tools/flow/describe_choices.h"

#include "base/cat.h"
#include "fmt/format.h"

namespace partita {

std::vector<int64_t> weight_versions(const Compiled& compiled) {
  std::vector<int64_t> versions;
  for (const runtime::Program& stage : compiled.programs) versions.push_back(stage.slots > 1 ? stage.slots : 0);
  return versions;
}

std::string describe_choices(const Compiled& compiled) {
  std::string text;
  if (compiled.statistic_samples > 0) {
    text += fmt::format("semantics: batch_norm: replica: each statistic is of {} samples of the step's {}\n",
                        compiled.statistic_samples, compiled.samples);
  }
  if (compiled.capacity_samples > 0) {
    text += fmt::format("semantics: moe: experts' capacity is that of {} samples of the step's {}\n",
                        compiled.capacity_samples, compiled.samples);
  }
  if (compiled.schedule == PipelineSchedule::kPipedream) {
    std::string versions;
    for (int64_t n : weight_versions(compiled)) append(versions, versions.empty() ? "" : ", ", n);
    text += fmt::format(
        "schedule: pipedream: asynchronous: each of a step's {} micro-batches is an optimizer step, on weights that "
        "lack those of micro-batches in flight ({} versions stashed on the stages); training is not that of the serial "
        "program\n",
        compiled.programs.front().micro_batches, versions);
  }
  if (compiled.compress != Compression::kNone) {
    const CompressedGradients& c = compiled.compressed;
    text += fmt::format(
        "compress: {}: {} sums of gradients travel compressed, in {:.1f} MB instead of {:.1f} MB a rank and step; "
        "training is not that of the serial program\n",
        enum_name(compiled.compress), c.sums, static_cast<double>(c.bytes) / 1e6,
        static_cast<double>(c.plain_bytes) / 1e6);
  }
  return text;
}

}  // namespace partita
