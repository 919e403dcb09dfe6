#include <cstdio>
#include <filesystem>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/data/data_source.h"
#include "runtime/data/index_shards.h"
#include "runtime/execute/input_stage.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/train/step_programs.h"
#include "tools/cli/command.h"

namespace partita {
namespace {

struct Flags {
  std::string bundle, resume;
  int64_t step = -1;
  runtime::RunFlags run;
};

// What the Python package's own `partita` does.
absl::Status is_of_the_package(const std::string& verb) {
  if (verb != "tokenize" && verb != "inspect" && verb != "mix") return absl::OkStatus();
  return absl::InvalidArgumentError(
      cat("`partita data ", verb, "` is part of the Python package: pip install ",
          "'./tools/python[data]' (docs/python.md), and call the `partita` that it installs"));
}

struct IndexFlags {
  std::string place, dtype;
  int64_t window = 0;
  bool more = false;
};

absl::Status make_index(const IndexFlags& flags) {
  runtime::NewShards what{.complete = !flags.more, .window = flags.window};
  if (!flags.dtype.empty()) {
    what.dtype = runtime::parse_element_type(flags.dtype);
    if (!is_integer(what.dtype))
      return absl::InvalidArgumentError(
          cat("--dtype ", quote(flags.dtype), " is no type of ids; expected uint8, uint16, int32, …"));
  }
  std::error_code ignored;
  if (!flags.place.starts_with("s3://") && !std::filesystem::is_directory(flags.place, ignored))
    return absl::NotFoundError(cat("folder ", quote(flags.place, 1000), " is not there"));
  PARTITA_ASSIGN_OR_RETURN(const auto store,
                           runtime::open_object_store(flags.place, runtime::read_environment(), nullptr));
  PARTITA_ASSIGN_OR_RETURN(const runtime::ShardIndex index, runtime::update_shard_index(*store, what));
  int64_t items = 0;
  for (const runtime::Shard& s : index.shards) items += s.items;
  std::printf(
      "%s/%s: %zu shards, %lld %s%s\n", flags.place.c_str(), runtime::kShardIndexName, index.shards.size(),
      static_cast<long long>(items), index.kind == DataKind::kTokens ? "tokens of " : "records",
      cat(index.kind == DataKind::kTokens ? dtype_name(index.dtype) : "", index.complete ? "" : ", and more to come")
          .c_str());
  return absl::OkStatus();
}

// The samples of a batch, where each has one of several lengths, and that length.
absl::StatusOr<std::pair<int64_t, std::vector<std::string>>> locate_of_lengths(
    const std::vector<runtime::LengthPart>& lengths, const runtime::Program& largest, const runtime::DataConfig& data,
    int64_t batch) {
  std::vector<std::unique_ptr<runtime::DataSource>> sources;
  std::vector<const runtime::DataSource*> all;
  for (size_t k = 0; k < lengths.size(); ++k) {
    const runtime::Program& program = lengths[k].programs.empty() ? largest : lengths[k].programs.first();
    PARTITA_ASSIGN_OR_RETURN(sources.emplace_back(),
                             runtime::DataSource::open(runtime::data_of_length(data, lengths, k),
                                                       runtime::input_specs(program), lengths[k].samples));
    all.push_back(sources.back().get());
  }
  const runtime::LengthSchedule::Turn turn = runtime::length_schedule(all).at(batch);
  PARTITA_ASSIGN_OR_RETURN(std::vector<std::string> places, all[turn.length]->locate(turn.batch));
  return std::pair(lengths[turn.length].length, std::move(places));
}

absl::Status run(const Flags& flags) {
  PARTITA_RETURN_IF_ERROR(is_of_the_package(flags.bundle));
  if (flags.bundle.empty() || flags.step < 0)
    return absl::InvalidArgumentError("say which step of which bundle: partita data BUNDLE --step N");
  PARTITA_ASSIGN_OR_RETURN(const auto bundle, runtime::BundleFiles::open(flags.bundle, {}));
  PARTITA_ASSIGN_OR_RETURN(const runtime::TrainOptions options, flags.run.options(*bundle));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<runtime::Program> programs, bundle->programs(runtime::kImageName));
  const runtime::Program& program = programs.front();
  runtime::DataConfig data = options.data;
  runtime::BatchOrder order;
  runtime::CheckpointManifest from;
  from.samples = data.sample_offset;
  if (!flags.resume.empty()) {
    PARTITA_ASSIGN_OR_RETURN(const std::string path, runtime::find_checkpoint(flags.resume));
    PARTITA_ASSIGN_OR_RETURN(from, runtime::read_manifest(path));
    if (flags.step < from.step)
      return absl::InvalidArgumentError(
          cat("step ", flags.step, " is before the checkpoint's, ", from.step, "; name an older one, or none"));
  }
  int64_t each = program.samples_per_step;  // of the largest, where there are several lengths
  const auto go_on = [&](int64_t step, int64_t position) {
    data.sample_offset = position - step * each;
    order = {data.sample_offset, each, step};
    for (const runtime::SkippedSamples& s : from.skipped) order.skip(s);
  };
  for (const runtime::BatchPhase& phase : options.ramp) each = phase.from <= from.step ? phase.samples : each;
  go_on(from.step, from.samples);
  for (const runtime::BatchPhase& phase : options.ramp) {
    if (phase.from <= from.step || phase.from > flags.step) continue;
    each = phase.samples;
    go_on(phase.from, order.samples_of(order.batch_of(phase.from)).first);
  }
  const int64_t batch = order.batch_of(flags.step);
  const runtime::SkippedSamples samples = order.samples_of(batch);
  std::vector<std::string> places;
  std::string what = cat("samples ", samples.first, " to ", samples.first + samples.count - 1, " of the stream");
  if (options.lengths.empty()) {
    data.epochs = 0;  // the samples of a step do not depend on where the run ends
    PARTITA_ASSIGN_OR_RETURN(const auto source, runtime::DataSource::open(data, runtime::input_specs(program), each));
    PARTITA_ASSIGN_OR_RETURN(places, source->locate(batch));
  } else {
    PARTITA_ASSIGN_OR_RETURN(auto found, locate_of_lengths(options.lengths, program, data, samples.first / each));
    places = std::move(found.second);
    what = cat(places.size(), " samples of length ", found.first);
  }
  std::printf("step %lld (counted from 0) takes %s\n", static_cast<long long>(flags.step), what.c_str());
  for (size_t k = 0; k < places.size(); ++k) std::printf("  %zu: %s\n", k, places[k].c_str());
  return absl::OkStatus();
}

}  // namespace

void add_data(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("data",
                                      "which samples, of which files, a step of training takes; `partita data index "
                                      "PLACE` lists a dataset's shards (`partita data "
                                      "tokenize`, `inspect` and `mix` come with the Python package)");
  verb->add_option("bundle", flags->bundle, "folder that `partita compile` wrote");
  verb->add_option("--step", flags->step, "the step, counted from 0 as in files of metrics")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--data", flags->run.data, "as in the run; default: the bundle's own data");
  verb->add_flag("--shuffle", flags->run.shuffle, "as in the run");
  verb->add_option("--steps", flags->run.steps, "as in the run");
  verb->add_option("--resume", flags->resume,
                   "a checkpoint that the run went on from: it knows the place in the data, and what samples are left "
                   "out since a rollback");
  flags->run.only_warn();
  verb->callback([flags, verb, &result] {
    if (verb->get_subcommands().empty()) result = run(*flags);
  });

  auto of_shards = std::make_shared<IndexFlags>();
  CLI::App* index = verb->add_subcommand(
      "index",
      "write the index of a dataset in shards: each .bin, .npy or .tar that it does not list yet is read once");
  index->add_option("place", of_shards->place, "a folder, or s3://BUCKET/PREFIX")->required();
  index->add_option("--dtype", of_shards->dtype, "element type of raw ids, as uint16; others tell it themselves");
  index
      ->add_option("--window", of_shards->window,
                   "runs with `shuffle` mix so many samples that follow one another; default: 65536")
      ->check(CLI::PositiveNumber);
  index->add_flag("--more", of_shards->more, "shards will be added: runs wait for them");
  index->callback([of_shards, &result] { result = make_index(*of_shards); });
}

}  // namespace partita
