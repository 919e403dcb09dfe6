#include "runtime/trainer.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/box.h"
#include "runtime/collective_threads.h"
#include "runtime/data/prefetcher.h"
#include "runtime/placement.h"
#include "runtime/state_files.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::vector<InputSpec> input_specs(const Program& program) {
  std::vector<InputSpec> specs;
  for (const ProgramInput& in : program.inputs) {
    if (in.kind != "data") continue;
    InputSpec s{in.name, in.operand.dtype, in.placement.logical, !in.placement.logical.empty()};
    if (s.batched) s.sample_shape.erase(s.sample_shape.begin());
    specs.push_back(std::move(s));
  }
  return specs;
}

// One data input as this rank reads it: a run of samples, and the pieces of them that it holds.
struct Column {
  const ProgramInput* input = nullptr;
  int64_t first = 0, count = 0;  // samples within the micro-batch
  std::vector<LogicalPiece> pieces;
  bool direct = false;  // the samples are the operand's bytes
};

class Trainer {
 public:
  Trainer(Executor& executor, Communicator* communicator, const TrainOptions& options)
      : executor_(executor), program_(executor.program()), communicator_(communicator), options_(options) {}

  absl::Status run(MetricsSink* sink) {
    PARTITA_RETURN_IF_ERROR(open_data());
    auto memory = [this](const Operand& o) { return executor_.memory(o); };
    PARTITA_RETURN_IF_ERROR(with_context(
        initialize_states(program_, executor_.coordinates(), options_.initial, options_.seed, memory), "first values"));
    for (int64_t step = 0; step < steps_; ++step) {
      PARTITA_RETURN_IF_ERROR(train_step(step, sink));
      if (step == 0 && !options_.save_gradients.empty()) PARTITA_RETURN_IF_ERROR(save_gradients());
    }
    if (!options_.save.empty()) PARTITA_RETURN_IF_ERROR(save_parameters());
    return write_profile();
  }

 private:
  bool first_rank() const { return executor_.rank() == 0; }

  absl::Status open_data() {
    PARTITA_ASSIGN_OR_RETURN(auto source,
                             DataSource::open(options_.data, input_specs(program_), program_.samples_per_step));
    source_ = std::move(source);
    steps_ = options_.steps;
    if (steps_ < 0) {
      int64_t samples = source_->samples_per_epoch();
      steps_ = samples / program_.samples_per_step * std::max<int64_t>(options_.data.epochs, 1);
    }
    PARTITA_RETURN_IF_ERROR(source_->check_steps(0, steps_));
    for (const ProgramInput& in : program_.inputs) {
      if (in.kind == "data") PARTITA_RETURN_IF_ERROR(add_column(in));
    }
    std::vector<SampleRange> ranges;
    int64_t run = program_.samples_per_step / (program_.micro_batches / program_.parts);
    for (int64_t m = 0; m < program_.micro_batches; ++m) {
      for (size_t k = 0; k < columns_.size(); ++k)
        ranges.push_back(
            {static_cast<int>(k),
             m / program_.parts * run + m % program_.parts * columns_[k].input->part_samples + columns_[k].first,
             columns_[k].count});
    }
    prefetcher_.emplace(source_, std::move(ranges), 0, steps_);
    return absl::OkStatus();
  }

  absl::Status add_column(const ProgramInput& in) {
    Column c{.input = &in, .first = 0, .count = 0, .pieces = {}, .direct = false};
    if (in.placement.logical.empty()) {
      c.direct = true;
    } else {
      int64_t first = in.placement.logical[0], last = 0;
      PARTITA_RETURN_IF_ERROR(for_each_piece(in.placement, executor_.coordinates(), [&](const LogicalPiece& piece) {
        first = std::min(first, piece.offset[0]);
        last = std::max(last, piece.offset[0] + piece.extent[0]);
        c.pieces.push_back(piece);
        return absl::OkStatus();
      }));
      c.first = first;
      c.count = last - first;
      c.direct = c.pieces.size() == 1 &&
                 std::equal(c.pieces[0].extent.begin() + 1, c.pieces[0].extent.end(), in.placement.logical.begin() + 1);
    }
    columns_.push_back(std::move(c));
    return absl::OkStatus();
  }

  absl::Status train_step(int64_t step, MetricsSink* sink) {
    Clock::time_point begin = Clock::now();
    double stalled = prefetcher_->stall_seconds();
    PARTITA_ASSIGN_OR_RETURN(Batch batch, prefetcher_->take(step));
    for (const ProgramState& s : program_.states) {
      if (s.kind != "accumulator") continue;
      std::span<std::byte> own = executor_.memory(s.operand);
      std::memset(own.data(), 0, own.size());
    }
    PARTITA_RETURN_IF_ERROR(executor_.run(
        program_.schedule, [&](int64_t micro_batch, int64_t slot) { return stage(batch, micro_batch, slot); }));
    prefetcher_->give_back(std::move(batch));
    if (!first_rank()) return absl::OkStatus();
    StepMetrics m = metrics(step);
    m.seconds = seconds_since(begin);
    m.samples_per_second = static_cast<double>(program_.samples_per_step) / m.seconds;
    m.input_stall_seconds = prefetcher_->stall_seconds() - stalled;
    if (m.loss && !std::isfinite(*m.loss) && !warned_) {
      std::fprintf(stderr, "warning: step %lld: the loss is %g; training goes on\n", static_cast<long long>(step),
                   *m.loss);
      warned_ = true;
    }
    return sink ? sink->write(m) : absl::OkStatus();
  }

  absl::Status stage(const Batch& batch, int64_t micro_batch, int64_t slot) {
    for (size_t k = 0; k < columns_.size(); ++k) {
      const Column& c = columns_[k];
      const std::vector<std::byte>& data = batch.data[static_cast<size_t>(micro_batch) * columns_.size() + k];
      std::span<std::byte> own = executor_.memory(c.input->operand, slot);
      if (c.direct) {
        PARTITA_CHECK(own.size() == data.size(), "size of a staged input");
        std::memcpy(own.data(), data.data(), data.size());
      } else {
        scatter(c, data, own);
      }
    }
    return absl::OkStatus();
  }

  // Copies the rank's pieces out of whole samples.
  static void scatter(const Column& c, const std::vector<std::byte>& data, std::span<std::byte> own) {
    int64_t size = dtype_size(c.input->operand.dtype);
    std::vector<int64_t> shape = c.input->placement.logical;
    shape[0] = c.count;
    for (const LogicalPiece& piece : c.pieces) {
      std::vector<int64_t> offset = piece.offset;
      offset[0] -= c.first;
      std::vector<std::byte> dense(static_cast<size_t>(*element_count(piece.extent) * size));
      absl::Status copied = for_each_run(shape, offset, piece.extent, [&](int64_t from, int64_t to, int64_t n) {
        std::memcpy(dense.data() + to * size, data.data() + from * size, static_cast<size_t>(n * size));
        return absl::OkStatus();
      });
      PARTITA_CHECK(copied.ok(), "pieces lie inside their samples");
      unpack_piece(piece, size, dense.data(), own.data());
    }
  }

  std::optional<double> scalar(std::string_view name) const {
    for (const ProgramOutput& o : program_.outputs) {
      if (o.name != name) continue;
      const std::byte* p = executor_.memory(o.operand).data();
      if (o.operand.dtype == DType::kF64) {
        double v;
        std::memcpy(&v, p, sizeof v);
        return v;
      }
      float v;
      std::memcpy(&v, p, sizeof v);
      return v;
    }
    return std::nullopt;
  }

  StepMetrics metrics(int64_t step) const {
    StepMetrics m;
    m.step = step;
    m.loss = scalar("loss");
    m.lr = scalar("lr");
    m.grad_norm = scalar("grad_norm");
    int64_t bytes = 0;
    for (int64_t b : program_.region_bytes) bytes += b;
    m.memory_bytes = bytes;
    return m;
  }

  absl::Status save_gradients() {
    constexpr std::string_view kPrefix = "grad/";
    std::vector<HeldTensor> tensors;
    for (const ProgramOutput& o : program_.outputs) {
      if (o.name.rfind(kPrefix, 0) == 0)
        tensors.push_back({o.name.substr(kPrefix.size()), o.operand.dtype, &o.placement, executor_.memory(o.operand)});
    }
    if (tensors.empty())
      return absl::FailedPreconditionError("the program keeps no gradients; compile it with --keep-gradients");
    return save_tensors(options_.save_gradients, tensors, executor_.coordinates(), communicator_);
  }

  absl::Status save_parameters() {
    std::vector<HeldTensor> tensors;
    for (const ProgramState& s : program_.states) {
      if (s.kind == "parameter" || s.kind == "running")
        tensors.push_back({s.name, s.operand.dtype, &s.placement, executor_.memory(s.operand)});
    }
    return save_tensors(options_.save, tensors, executor_.coordinates(), communicator_);
  }

  absl::Status write_profile() const {
    const StepProfile* profile = executor_.profile();
    if (profile == nullptr || !first_rank()) return absl::OkStatus();
    std::fprintf(stderr, "%s", profile->table().c_str());
    return write_file_atomically(options_.profile, profile->chrome_trace(), Durable::kNo);
  }

  Executor& executor_;
  const Program& program_;
  Communicator* communicator_;
  const TrainOptions& options_;
  std::shared_ptr<const DataSource> source_;
  std::optional<Prefetcher> prefetcher_;
  std::vector<Column> columns_;
  int64_t steps_ = 0;
  bool warned_ = false;
};

int threads_per_rank(const TrainOptions& options, int64_t ranks_here) {
  if (options.threads > 0) return options.threads;
  return static_cast<int>(std::max<int64_t>(
      1, static_cast<int64_t>(std::thread::hardware_concurrency()) / std::max<int64_t>(1, ranks_here)));
}

absl::Status train_with(std::shared_ptr<const LoadedProgram> loaded, Communicator* communicator,
                        const TrainOptions& options, MetricsSink* sink, int threads) {
  auto run = [&]() -> absl::Status {
    PARTITA_ASSIGN_OR_RETURN(
        auto executor,
        Executor::create(loaded, communicator, {.threads = threads, .profile = !options.profile.empty()}));
    return Trainer(*executor, communicator, options).run(sink);
  };
  absl::Status status = run();
  if (!status.ok() && communicator != nullptr)
    communicator->abort(cat("rank ", communicator->rank(), ": ", status.message()));
  return status;
}

}  // namespace

absl::Status train_rank(std::shared_ptr<const LoadedProgram> loaded, Communicator* communicator,
                        const TrainOptions& options, MetricsSink* sink) {
  return train_with(std::move(loaded), communicator, options, sink, threads_per_rank(options, 1));
}

absl::Status train_local(std::shared_ptr<const LoadedProgram> loaded, const TrainOptions& options, MetricsSink* sink) {
  int ranks = static_cast<int>(mesh_size(loaded->program.mesh)), threads = threads_per_rank(options, ranks);
  if (ranks == 1) return train_with(std::move(loaded), nullptr, options, sink, threads);
  ThreadWorld world(ranks);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int r = 0; r < ranks; ++r) {
    PARTITA_ASSIGN_OR_RETURN(auto c, world.communicator(r));
    communicators.push_back(std::move(c));
  }
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> team;
  for (int r = 0; r < ranks; ++r) {
    team.emplace_back([&, r] {
      results[static_cast<size_t>(r)] =
          train_with(loaded, communicators[static_cast<size_t>(r)].get(), options, r == 0 ? sink : nullptr, threads);
    });
  }
  for (std::thread& t : team) t.join();
  absl::Status first;
  for (const absl::Status& s : results) {
    bool own = !s.ok() && s.code() != absl::StatusCode::kUnavailable;
    if (own) return s;
    if (first.ok()) first = s;
  }
  return first;
}

}  // namespace partita::runtime
