#include "runtime/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>

#include "base/cat.h"
#include "base/exit_code.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/audit/auditor.h"
#include "runtime/checkpoint/state_files.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/communicate/flag_exchange.h"
#include "runtime/data/data_config_json.h"
#include "runtime/execute/batch_wait.h"
#include "runtime/execute/input_stage.h"
#include "runtime/program/placement.h"
#include "runtime/program/sides.h"
#include "runtime/train/divergence_guard.h"
#include "runtime/train/results.h"
#include "runtime/train/step_meter.h"
#include "runtime/train/trainer_notes.h"
#include "runtime/train/training_loop.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kWorthTelling = 0.25;  // seconds, of a wait for checkpoints

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class Trainer : public TrainingLoop {
 public:
  explicit Trainer(const LoopParts& parts)
      : watch_(parts.watch),
        executor_(parts.executor),
        program_(executor_.program()),
        programs_(parts.options.ramp, parts.options.lengths, executor_, parts.of_steps, parts.threads),
        communicator_(parts.communicator),
        recorder_(parts.recorder),
        options_(parts.options),
        threads_(parts.threads),
        exchange_(communicator_),
        guard_(options_.divergence, communicator_),
        meter_(executor_, communicator_, parts.measured, options_.figures) {}

  absl::Status run(MetricsSink* sink) override {
    PARTITA_RETURN_IF_ERROR(start());
    PARTITA_RETURN_IF_ERROR(evaluate_late(sink));
    for (int64_t step = first_; step < steps_;) {
      if (step > first_ && step == programs_.end(step - 1)) PARTITA_RETURN_IF_ERROR(change_batch(step));
      programs_.choose(order_.batch_of(step));
      if (!programs_.inputs().has(step)) break;
      meter_.begin(programs_);
      PARTITA_ASSIGN_OR_RETURN(const Wishes told, wait_for_samples(step));
      if (told.stop || told.save) {
        PARTITA_ASSIGN_OR_RETURN(step, save_between(step, told.stop));
        continue;
      }
      begin_exchange(step);
      PARTITA_ASSIGN_OR_RETURN(StepMetrics m, train_step(step));
      if (step == 0 && !options_.save_gradients.empty())
        PARTITA_RETURN_IF_ERROR(save_gradients(programs_.running(), communicator_, options_.save_gradients));
      PARTITA_ASSIGN_OR_RETURN(bool better, evaluate(step + 1, m));
      if (const int64_t skipped = order_.samples_skipped(); skipped > 0)
        m.extra.emplace_back("skipped_samples", static_cast<double>(skipped));
      if (first_rank()) guard_.look_at(m, checkpoints_.get());
      PARTITA_ASSIGN_OR_RETURN(const ExchangedFlags said, exchange_.end());
      hungry_ = said[kHungry] != 0;
      if (checkpoints_) PARTITA_RETURN_IF_ERROR(settle_checkpoint(m, said));
      if (sink != nullptr) PARTITA_RETURN_IF_ERROR(sink->write(m));
      if (evaluator_ != nullptr && evaluator_->wants_to_stop()) stop_early(step + 1);
      const bool stop = said[kStop] != 0 || (evaluator_ != nullptr && evaluator_->stopped());
      const bool save = checkpoints_ != nullptr && (stop || said[kSave] != 0 || checkpoints_->is_due(step + 1) ||
                                                    (better && options_.checkpoint.keep_best > 0));
      const bool must_know = save || step + 1 >= steps_ || options_.data.feed != nullptr;
      PARTITA_ASSIGN_OR_RETURN(const std::optional<int64_t> bad, guard_.bad_step(step, said[kDiverged], must_know));
      if (bad) {
        PARTITA_ASSIGN_OR_RETURN(step, deal_with(*bad));
        continue;
      }
      if (save) {
        const Clock::time_point begin = Clock::now();
        PARTITA_RETURN_IF_ERROR(save_checkpoint(step + 1));
        checkpoint_seconds_ = seconds_since(begin);
        if (options_.save_now != nullptr) options_.save_now->store(false);
      }
      if (stop) return told_to_stop(step + 1);
      if (checkpoints_ && checkpoints_->mirror_is_due(step + 1)) PARTITA_RETURN_IF_ERROR(mirror(step + 1));
      ++step;
    }
    watch_.enter(Phase::kCheckpoint, taken_);
    if (checkpoints_) {
      PARTITA_RETURN_IF_ERROR(save_checkpoint(taken_));
      PARTITA_RETURN_IF_ERROR(checkpoints_->finish());
      PARTITA_RETURN_IF_ERROR(checkpoints_->leave());
    }
    if (!options_.save.empty())
      PARTITA_RETURN_IF_ERROR(
          save_parameters(executor_, communicator_, options_.save, options_.save_optimizer, &watch_.recorder()));
    return write_profile(executor_, options_.profile, options_.profile_tables);
  }

 private:
  bool first_rank() const { return executor_.rank() == 0; }
  Auditor* auditor() const { return auditors_.empty() ? nullptr : auditors_[programs_.chosen()].get(); }

  // First values or a checkpoint's, and the data from the first step on.
  absl::Status start() {
    if (first_rank())
      PARTITA_RETURN_IF_ERROR(check_targets({options_.save, options_.save_gradients, options_.profile}));
    auto memory = [this](const Operand& o) { return executor_.memory(o); };
    PARTITA_RETURN_IF_ERROR(with_context(
        initialize_states(program_, executor_.coordinates(), {options_.initial, options_.seed, threads_}, memory),
        "first values"));
    PARTITA_RETURN_IF_ERROR(executor_.put_states());
    PARTITA_RETURN_IF_ERROR(open_evaluator());
    const CheckpointOptions& c = options_.checkpoint;
    if (!c.folder.empty() || !c.resume.empty() || !c.init.empty() || !c.init_optimizer.empty()) {
      PARTITA_ASSIGN_OR_RETURN(checkpoints_, Checkpointer::open(c, executor_, communicator_, &watch_.recorder()));
      PARTITA_ASSIGN_OR_RETURN(from_, checkpoints_->resume());
      PARTITA_RETURN_IF_ERROR(executor_.put_states());
      if (from_) resume(*from_);
      for (const SkippedSamples& s : options_.skipped) order_.skip(s);
      if (c.folder.empty()) checkpoints_.reset();
    }
    if (from_ && options_.new_pass && data_.feed == nullptr) PARTITA_RETURN_IF_ERROR(begin_pass());
    PARTITA_RETURN_IF_ERROR(open_inputs());
    if (communicator_ != nullptr)
      PARTITA_RETURN_IF_ERROR(agree_on_run(*communicator_, options_, programs_, evaluator_.get()));
    if (evaluator_ != nullptr) PARTITA_RETURN_IF_ERROR(check_classes(programs_, *evaluator_));
    if (from_ && first_rank()) warn_of_changes(*from_, head_of(first_), options_.new_pass);
    if (evaluator_ != nullptr && evaluator_->wants_to_stop()) stop_early(first_);  // as the resumed run did
    taken_ = first_;
    if (options_.divergence.rolls_back()) PARTITA_RETURN_IF_ERROR(prepare_rollback());
    if (first_rank() && first_ > 0 && first_ >= steps_)
      std::fprintf(stderr, "note: the checkpoint is of step %lld; no steps are left to run%s\n",
                   static_cast<long long>(first_),
                   options_.steps < 0 ? ", as the data are used up; --new-pass begins them again" : "");
    const auto mirror = checkpoints_ ? checkpoints_->mirror_told() : "";
    PARTITA_RETURN_IF_ERROR(mirror.status());
    if (options_.tell && first_rank()) tell_start(*mirror);
    return absl::OkStatus();
  }

  // What runs step first_, and the data from it on, without the samples that are skipped, while steps take as many.
  absl::Status open_inputs() {
    hungry_ = true;
    PARTITA_RETURN_IF_ERROR(programs_.open(first_, data_));
    auditors_.clear();
    for (Executor* e : options_.audit > 0 ? programs_.executors() : std::vector<Executor*>()) {
      PARTITA_ASSIGN_OR_RETURN(auditors_.emplace_back(), Auditor::open(*e, communicator_, recorder_, options_.audit));
    }
    programs_.choose(order_.batch_of(first_));
    steps_ = options_.steps;
    if (steps_ < 0) {
      PARTITA_ASSIGN_OR_RETURN(steps_, programs_.end_of_data(first_, data_));
    }
    // Where samples are skipped, the data end that much earlier.
    const bool earlier = !order_.skipped().empty() && steps_ <= programs_.end(first_);
    while (earlier && steps_ > first_ && !programs_.holds(order_.batch_of(steps_ - 1))) --steps_;
    const int64_t end = std::min(steps_, programs_.end(first_)), begin = order_.batch_of(first_);
    return programs_.start(begin, end > first_ ? order_.batch_of(end - 1) + 1 : begin);
  }

  // Over data that are others than the checkpoint's, or of which no step is left. Its order is that of a later epoch.
  absl::Status begin_pass() {
    PARTITA_RETURN_IF_ERROR(programs_.open(first_, data_));
    const int64_t pass = programs_.epoch_samples(), epochs = data_.epochs;
    if (pass == 0 || !options_.lengths.empty()) return absl::OkStatus();
    const auto allow = [&](int64_t passes) { data_.epochs = epochs > 0 ? epochs + passes : 0; };
    allow(from_->samples / pass);
    if (data_.epochs != epochs) PARTITA_RETURN_IF_ERROR(programs_.open(first_, data_));
    const bool same = pass == from_->epoch_samples && programs_.fingerprint() == from_->data_fingerprint;
    if (same && programs_.holds(order_.batch_of(first_))) return absl::OkStatus();
    const int64_t passes = (from_->samples + pass - 1) / pass;
    from_->samples = passes * pass;
    allow(passes);
    go_on(first_, from_->samples, options_.skipped);
    return absl::OkStatus();
  }

  // The run goes on with a step that takes the stream's samples from `position` on.
  void go_on(int64_t step, int64_t position, std::vector<SkippedSamples> skipped) {
    const int64_t each = programs_.samples(step);
    first_ = step;
    data_.sample_offset = position - step * each;
    order_before_ = std::exchange(order_, {data_.sample_offset, each, step});
    for (const SkippedSamples& s : skipped) order_.skip(s);
  }

  // From this step on a step takes another number of samples.
  absl::Status change_batch(int64_t step) {
    go_on(step, order_.samples_of(order_.batch_of(step)).first, order_.skipped());
    return open_inputs();
  }

  // What the data are taken for, how far the run goes and where it begins.
  void tell_start(const std::string& mirror) const {
    tell_data(programs_, first_, evaluator_.get());
    if (!mirror.empty()) std::fprintf(stderr, "%s\n", mirror.c_str());
    const std::string text = start_note(std::max<int64_t>(0, steps_ - first_), programs_.samples(first_),
                                        programs_.tokens(first_), programs_.changes(first_));
    std::fprintf(stderr, "%s%s\n", text.c_str(), origin_note(first_, options_.checkpoint).c_str());
  }

  absl::Status open_evaluator() {
    if (options_.evaluate.programs.empty()) return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(evaluator_, Evaluator::open(options_.evaluate, executor_, communicator_, threads_));
    return absl::OkStatus();
  }

  // After every so many steps, and after the last: adds to the metrics, and says whether there was none better.
  absl::StatusOr<bool> evaluate(int64_t taken, StepMetrics& m) {
    if (evaluator_ == nullptr) return false;
    evaluator_->name_metrics(m);
    if (!evaluator_->is_due(taken) && taken != steps_) return false;
    watch_.enter(Phase::kEvaluation, taken - 1);
    PARTITA_RETURN_IF_ERROR(evaluator_->run(m, [this] { return wishes().stop; }));
    if (evaluator_->stopped()) return false;
    evaluation_loss_ = m.evaluation_loss;
    return evaluator_->improves(*m.evaluation_loss);
  }

  // The evaluation that the run before was told to stop in: its checkpoint is of a step that calls for one, and has
  // none.
  absl::Status evaluate_late(MetricsSink* sink) {
    if (evaluator_ == nullptr || !from_ || first_ == 0 || from_->metrics.contains("evaluation_loss"))
      return absl::OkStatus();
    StepMetrics m = meter_.unmeasured(first_ - 1);
    if (const auto loss = from_->metrics.find("loss"); loss != from_->metrics.end()) m.loss = loss->second;
    PARTITA_RETURN_IF_ERROR(evaluate(first_, m).status());
    if (evaluator_->stopped()) return told_to_stop(first_);
    if (!m.evaluation_loss) return absl::OkStatus();
    if (evaluator_->wants_to_stop()) stop_early(first_);
    return sink != nullptr ? sink->write(m) : absl::OkStatus();
  }

  void stop_early(int64_t taken) {
    steps_ = taken;
    if (first_rank()) tell_early_stop(taken, evaluator_->without_gain(), *evaluator_->best());
  }

  void resume(const CheckpointManifest& from) {
    go_on(from.step, from.samples, from.skipped);
    guard_.restore(from.losses);
    auto number = [&](const char* name) -> std::optional<double> {
      auto at = from.metrics.find(name);
      return at == from.metrics.end() ? std::nullopt : std::optional(at->second);
    };
    if (evaluator_ != nullptr)
      evaluator_->restore(number("best_evaluation_loss"),
                          static_cast<int64_t>(number("evaluations_without_gain").value_or(0)));
  }

  // What ranks tell each other along with a step.
  enum Flag : size_t { kStop, kDiverged, kWriting, kFailed, kArchiving, kSave, kMirroring, kMirrorFailed, kHungry };

  void begin_exchange(int64_t step) {
    const Checkpointer::Progress progress = checkpoints_ ? checkpoints_->progress() : Checkpointer::Progress{};
    ExchangedFlags mine;
    mine[kStop] = wishes().stop;
    // The ranks hear of a wish to save one after the other: what is being written serves the later ones, too.
    const bool wished = options_.save_now != nullptr && options_.save_now->exchange(false);
    mine[kSave] = checkpoints_ != nullptr && wished && progress.writing == 0;
    mine[kHungry] = !programs_.read_ahead(order_.batch_of(step + 1));
    mine[kDiverged] = guard_.flag();
    mine[kWriting] = progress.writing;
    mine[kFailed] = progress.failed;
    mine[kArchiving] = progress.archiving;
    mine[kMirroring] = progress.mirroring;
    mine[kMirrorFailed] = progress.mirror_failed;
    exchange_.begin(mine);
  }

  Wishes wishes() const {
    auto is_set = [&](const std::atomic<bool>* flag) { return checkpoints_ != nullptr && flag != nullptr && *flag; };
    return {is_set(options_.stop), is_set(options_.save_now)};
  }

  // Where a rank has not read ahead: it may have to wait for samples that are still to come. What is being written is
  // finished meanwhile.
  absl::StatusOr<Wishes> wait_for_samples(int64_t step) {
    if (!hungry_) return Wishes{};
    return wait_for_batch(
        programs_.inputs(), step, programs_.own_batch(order_.batch_of(step)), communicator_, watch_,
        [&] { return wishes(); }, [&] { return checkpoints_ ? finish_writing(step) : absl::OkStatus(); });
  }

  // Saves before a step, and leaves, or says which step is next. Collective.
  absl::StatusOr<int64_t> save_between(int64_t step, bool stop) {
    PARTITA_ASSIGN_OR_RETURN(const std::optional<int64_t> bad, guard_.bad_step(step - 1, 0, true));
    if (bad) return deal_with(*bad);
    PARTITA_RETURN_IF_ERROR(save_checkpoint(step));
    if (options_.save_now != nullptr) options_.save_now->store(false);
    if (stop) return told_to_stop(step);
    PARTITA_RETURN_IF_ERROR(finish_writing(step));
    return step;
  }

  // A checkpoint that cannot be written has been warned of.
  absl::Status finish_writing(int64_t step) {
    watch_.enter(Phase::kCheckpoint, step);
    checkpoints_->finish().IgnoreError();
    return communicator_ != nullptr ? communicator_->failure() : absl::OkStatus();
  }

  // A checkpoint is complete before the step after it counts as done: so a run that is killed, at whatever moment, has
  // lost no more than the steps from one checkpoint to the next.
  absl::Status settle_checkpoint(StepMetrics& m, const ExchangedFlags& said) {
    PARTITA_RETURN_IF_ERROR(
        checkpoints_->settle({said[kWriting], said[kFailed], said[kArchiving], said[kMirroring], said[kMirrorFailed]}));
    if (checkpoints_->last_saved() != m.step) return absl::OkStatus();
    const Clock::time_point begin = Clock::now();
    PARTITA_RETURN_IF_ERROR(finish_writing(m.step));
    const double waited = seconds_since(begin);
    const std::optional<Checkpointer::Cost> cost = checkpoints_->take_cost();
    if (cost) {
      m.extra.emplace_back("checkpoint_bytes", static_cast<double>(cost->bytes));
      m.extra.emplace_back("checkpoint_write_seconds", cost->seconds);
    }
    if (waited < kWorthTelling) return absl::OkStatus();
    m.checkpoint_stall_seconds = m.checkpoint_stall_seconds.value_or(0) + waited;
    if (first_rank() && cost && !told_slow_)
      told_slow_ = tell_slow_checkpoint(*cost, waited, m.seconds, options_.checkpoint.every);
    return absl::OkStatus();
  }

  // Ends the run with an error, or takes it back: the step to go on with. Collective.
  absl::StatusOr<int64_t> deal_with(int64_t bad) {
    PARTITA_ASSIGN_OR_RETURN(const DivergenceGuard::Verdict verdict, guard_.decide());
    if (verdict.stops) return stop_diverged(verdict.what);
    const BatchOrder& order = bad < first_ ? order_before_ : order_;  // the batch may have changed since
    const SkippedSamples skip = order.samples_of(order.batch_of(bad));
    std::vector<SkippedSamples> skipped = order_.skipped();
    watch_.enter(Phase::kStart, bad);
    PARTITA_ASSIGN_OR_RETURN(CheckpointManifest from, checkpoints_->roll_back(verdict.what));
    if (verdict.nonfinite && options_.rolled_back != nullptr)
      options_.rolled_back({cat(options_.checkpoint.folder, "/", checkpoint_name(from.step)), bad,
                            skipped_besides(skipped, from.skipped)});
    skipped.push_back(skip);
    PARTITA_RETURN_IF_ERROR(executor_.put_states());
    from.skipped = std::move(skipped);
    if (from_ && from_->step == from.step) from.samples = from_->samples;
    resume(from);
    guard_.rolled_back(first_);
    taken_ = first_;
    if (first_rank()) tell_rollback(verdict.what, first_, skip);
    PARTITA_RETURN_IF_ERROR(open_inputs());
    return first_;
  }

  absl::Status stop_diverged(const std::string& what) {
    std::string kept;
    if (checkpoints_) {
      if (absl::Status last = checkpoints_->finish(); communicator_ != nullptr && !communicator_->failure().ok())
        return last;
      checkpoints_->mark_bad(what);
      PARTITA_RETURN_IF_ERROR(checkpoints_->leave());
      kept = cat("; the good checkpoints are in ", quote(options_.checkpoint.folder, 1000));
    }
    return diverged_error(cat(what, ": training ends", kept));
  }

  // What to go back to has to be there from the first step on.
  absl::Status prepare_rollback() {
    if (options_.data.feed != nullptr)
      return absl::InvalidArgumentError("rollback needs data that can be read again, not batches that are handed over");
    if (checkpoints_ == nullptr)
      return absl::InvalidArgumentError("rollback needs checkpoints; say --checkpoint FOLDER");
    int64_t good = first_rank() && checkpoints_->has_good();
    PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&good, 1}, ReduceOp::kMax, "checkpoint: a good one"));
    if (good != 0) return absl::OkStatus();
    PARTITA_RETURN_IF_ERROR(save_checkpoint(first_));
    PARTITA_RETURN_IF_ERROR(checkpoints_->finish());
    checkpoints_->mark_good(first_, "the run began here");
    return absl::OkStatus();
  }

  absl::Status told_to_stop(int64_t taken) {
    watch_.enter(Phase::kCheckpoint, taken - 1);
    PARTITA_RETURN_IF_ERROR(checkpoints_->finish());
    PARTITA_RETURN_IF_ERROR(checkpoints_->leave());
    return absl::CancelledError(cat("told to stop: the checkpoint of step ", taken, " is in ",
                                    quote(options_.checkpoint.folder, 1000), "; go on with --resume"));
  }

  absl::Status save_checkpoint(int64_t taken) {
    if (checkpoints_->last_saved() == taken) return absl::OkStatus();
    watch_.enter(Phase::kCheckpoint, taken - 1);
    if (Auditor* a = auditor(); a != nullptr && !a->is_due(taken)) PARTITA_RETURN_IF_ERROR(a->compare_replicas(taken));
    PARTITA_RETURN_IF_ERROR(executor_.fetch_states());
    return checkpoints_->save(head_of(taken));
  }

  absl::Status mirror(int64_t taken) {
    watch_.enter(Phase::kCheckpoint, taken - 1);
    PARTITA_RETURN_IF_ERROR(executor_.fetch_states());
    return checkpoints_->mirror(head_of(taken));
  }

  CheckpointManifest head_of(int64_t taken) {
    CheckpointManifest head;
    head.model = program_.model;
    for (const MeshAxis& axis : program_.mesh)
      append(head.plan, head.plan.empty() ? "" : ",", axis.name, "=", axis.size);
    head.step = taken;
    head.samples = order_.samples_of(order_.batch_of(taken)).first;
    head.skipped = order_.skipped();
    head.losses = guard_.losses();
    head.samples_per_step = programs_.samples(std::max<int64_t>(0, taken - 1));
    head.seed = options_.seed;
    head.recipe = options_.recipe;
    head.data = cat(describe_data(data_), programs_.describe_lengths());
    head.epoch_samples = programs_.epoch_samples();
    head.data_fingerprint = programs_.fingerprint();
    const std::optional<double> loss = scalar_output(programs_.running(), "loss");
    if (loss && std::isfinite(*loss) && taken > first_) head.metrics["loss"] = *loss;
    if (evaluation_loss_ && std::isfinite(*evaluation_loss_)) head.metrics["evaluation_loss"] = *evaluation_loss_;
    if (evaluator_ != nullptr && evaluator_->best()) {
      head.metrics["best_evaluation_loss"] = *evaluator_->best();
      head.metrics["evaluations_without_gain"] = static_cast<double>(evaluator_->without_gain());
    }
    return head;
  }

  absl::StatusOr<StepMetrics> train_step(int64_t step) {
    InputStage& inputs = programs_.inputs();
    Executor& running = programs_.running();
    watch_.enter(Phase::kData, step);
    PARTITA_ASSIGN_OR_RETURN(Batch batch, programs_.take(order_.batch_of(step)));
    watch_.enter(Phase::kStep, step);
    auto run = [&]() -> absl::Status {
      PARTITA_RETURN_IF_ERROR(clear_accumulators(running));
      return running.run(
          running.program().schedule,
          [&](int64_t micro_batch, int64_t slot) { return inputs.stage(batch, micro_batch, slot); },
          [&] { return programs_.upload_ahead(order_.batch_of(step + 1)); });
    };
    Auditor* a = auditor();
    PARTITA_RETURN_IF_ERROR(a != nullptr && a->is_due(step + 1) ? a->run_step(step, run) : run());
    taken_ = step + 1;
    evaluation_loss_.reset();
    PARTITA_ASSIGN_OR_RETURN(StepMetrics m, meter_.end(step, programs_));
    m.padding = batch.padding;
    inputs.give_back(std::move(batch));
    watch_.step_took(m.seconds);
    if (checkpoint_seconds_ > 0) m.checkpoint_stall_seconds = std::exchange(checkpoint_seconds_, 0);
    return m;
  }

  RankWatch& watch_;
  Executor& executor_;
  const Program& program_;
  StepPrograms programs_;
  Communicator* communicator_;
  RecordingCommunicator* recorder_;
  const TrainOptions& options_;
  const int threads_;
  DataConfig data_ = options_.data;
  std::unique_ptr<Checkpointer> checkpoints_;       // null where none are written
  std::unique_ptr<Evaluator> evaluator_;            // null without evaluation
  std::vector<std::unique_ptr<Auditor>> auditors_;  // of the programs at hand; none without audits
  std::optional<double> evaluation_loss_;           // after the step just taken
  std::optional<CheckpointManifest> from_;          // the run goes on from
  int64_t first_ = 0, steps_ = 0, taken_ = 0;       // steps [first_, steps_); how many have been taken in all
  FlagExchange exchange_;
  DivergenceGuard guard_;
  BatchOrder order_{data_.sample_offset, programs_.samples(0), 0}, order_before_;  // that of the steps before first_
  bool told_slow_ = false;
  bool hungry_ = true;             // some rank has not read ahead
  double checkpoint_seconds_ = 0;  // after the step before
  StepMeter meter_;
};

}  // namespace

std::unique_ptr<TrainingLoop> make_training_loop(const LoopParts& parts) { return std::make_unique<Trainer>(parts); }

}  // namespace partita::runtime
