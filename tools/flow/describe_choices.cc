#include "tools/flow/describe_choices.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
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

namespace {

std::string counted(int64_t elements) {
  for (auto [unit, size] : {std::pair{"G", 1e9}, {"M", 1e6}}) {
    if (static_cast<double>(elements) >= size)
      return fmt::format("{:.4g}{}", static_cast<double>(elements) / size, unit);
  }
  return cat(elements);
}

}  // namespace

std::string describe_training(const Compiled& c) {
  const Recipe& r = c.recipe;
  int64_t state = 0, working = 0;  // of the stage that has most
  for (const runtime::Program& p : c.programs) {
    state = std::max(state, p.region_bytes[0]);
    working = std::max(working, p.region_bytes[2]);
  }
  std::string text =
      cat(c.programs.front().model, ": ", counted(c.weight_elements), " parameters, ",
          c.parameters == c.weight_elements ? "all" : counted(c.parameters), " trained, ", enum_name(r.precision),
          c.fp8_products > 0 ? cat(" (", c.fp8_products, " of ", c.products, " matrix products)") : "");
  if (r.optimizer) append(text, "; ", enum_name(r.optimizer->kind), fmt::format(", lr {:.4g}", r.optimizer->lr));
  if (r.schedule.kind != ScheduleKind::kConstant || r.schedule.warmup > 0)
    append(text, " (", enum_name(r.schedule.kind), r.schedule.warmup > 0 ? cat(", warm-up ", r.schedule.warmup) : "",
           ")");
  for (const BatchPhase& phase : r.batch.ramp)
    append(text, &phase == r.batch.ramp.data() ? "\nbatch: " : ", ", phase.samples,
           phase.from == 0 ? " samples a step" : cat(" from step ", phase.from, " on"));
  for (const Compiled& part : c.lengths)
    append(text, &part == c.lengths.data() ? "\nsamples a step: " : ", ", part.samples, " of length ", part.length);
  if (c.length > 0) append(text, ", ", c.samples, " of length ", c.length);
  text += fmt::format("\n{} rank{}: {}; {:.1f} MB of state and {:.1f} MB of working memory each\n", c.ranks,
                      c.ranks == 1 ? "" : "s", c.layout, static_cast<double>(state) / 1e6,
                      static_cast<double>(working) / 1e6);
  if (!c.unused_outputs.empty())
    append(text, "outputs of the model that no loss is made of, left out: ", quote_list(c.unused_outputs), "\n");
  return text + describe_choices(c);
}

}  // namespace partita
