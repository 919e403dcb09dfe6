// What a plan is made for: a model's work, a cluster, and what the recipe says of training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/recipe/recipe.h"
#include "partitioner/layout/layout.h"
#include "partitioner/planner/cluster/cluster.h"
#include "partitioner/planner/rates/kernel_time.h"
#include "partitioner/planner/workload/workload.h"

namespace partita {

// What a model asks for where its samples are shorter.
struct ShorterSamples {
  int64_t length = 0;
  const Workload* workload = nullptr;  // with the same units
};

struct Problem {
  const Workload* workload = nullptr;
  const Cluster* cluster = nullptr;
  ComputeOptions options;
  int64_t global_batch = 1;
  std::optional<int64_t> accumulation;  // micro-batches of a replica and step, where the recipe says them
  bool clip = false, skips = false;     // clip_grad_norm; run.on_nonfinite: skip
  Compression compress = Compression::kNone;
  std::optional<ReproducibleRecipe> reproducible;  // sums have a fixed order
  BatchNormGroup batch_statistics = BatchNormGroup::kGlobal;
  // Memory is that of programs compiled here (program_memory.h), not that of the software that the profiles describe.
  bool own_programs = false;

  // Where samples have several lengths, `workload`, `global_batch` and micro-batches are of the largest, `length`.
  // Steps of a shorter one take as many positions, and each length comes equally often.
  int64_t length = 0;
  std::vector<ShorterSamples> shorter;

  int64_t devices() const { return cluster->devices(); }
  // Bytes of a gradient's element that is added up among ranks: programs compiled here add in fp32.
  double gradient_bytes() const { return own_programs ? 4 : options.element_bytes(); }
};

// Blocks of the model; 1 where it has none.
int64_t block_count(const Workload& workload);

// Micro-batches that one replica runs in a step; 0 where the batch does not divide.
int64_t micro_batches(const Problem& problem, const Layout& layout);

// Why the layout cannot be, as a reason for the user; empty where it can.
std::string invalid(const Problem& problem, const Layout& layout);

}  // namespace partita
