#include "runtime/checkpoint/mirror.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <utility>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/launch/trusted_path.h"
#include "runtime/record/process.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunk = 16 << 20;
constexpr const char* kRunFile = "/.run";

CollectiveOp message(CollectiveKind kind, GroupId group, int peer, DType dtype, int64_t count, void* data) {
  CollectiveOp op;
  op.kind = kind;
  op.group = group;
  op.dtype = dtype;
  op.count = count;
  op.label = "mirror";
  (kind == CollectiveKind::kSend ? op.to : op.from) = peer;
  if (kind == CollectiveKind::kSend) {
    op.input = data;
  } else {
    op.output = data;
  }
  return op;
}

int64_t chunk_at(int64_t size, int64_t at) { return std::clamp<int64_t>(size - at, 0, kChunk); }

// A file that arrives in chunks.
struct Arriving {
  int from = 0;
  int64_t size = 0;
  std::unique_ptr<AtomicFile> file;
  std::vector<std::byte> chunk;
};

absl::StatusOr<std::unique_ptr<AtomicFile>> create_file(const std::string& path, int64_t size) {
  PARTITA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  PARTITA_RETURN_IF_ERROR(file.reserve(size));
  return std::make_unique<AtomicFile>(std::move(file));
}

// What a host has of one step, as it tells the others.
struct Holding {
  int64_t ranks = 0;
  std::set<int64_t> parts;
};

std::string describe_holdings(const std::string& folder, int64_t above) {
  std::string text;
  for (const int64_t step : list_checkpoints(folder)) {
    const std::string path = cat(folder, "/", checkpoint_name(step));
    const auto manifest = read_manifest(path);
    if (step <= above || !manifest.ok()) continue;
    append(text, step, " ", manifest->ranks);
    std::error_code ignored;
    for (int64_t rank = 0; rank < manifest->ranks; ++rank) {
      if (fs::exists(cat(path, "/", box_file(rank)), ignored)) append(text, " ", rank);
    }
    append(text, "\n");
  }
  return text;
}

std::map<int64_t, Holding> parse_holdings(const std::string& text) {
  std::map<int64_t, Holding> steps;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int64_t step = 0, ranks = 0;
    words >> step >> ranks;
    Holding& holding = steps[step];
    holding.ranks = ranks;
    for (int64_t part; words >> part;) holding.parts.insert(part);
  }
  return steps;
}

// The newest step that is whole, with the first host that has each part; nothing where none is.
std::optional<std::pair<int64_t, std::vector<size_t>>> newest_whole(
    const std::vector<std::map<int64_t, Holding>>& all) {
  std::set<int64_t> steps;
  for (const auto& host : all) {
    for (const auto& [step, holding] : host) steps.insert(step);
  }
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    std::vector<size_t> holders;
    bool whole = true;
    for (int64_t part = 0, ranks = 1; whole && part < ranks; ++part) {
      const auto has = [&](const auto& host) {
        const auto at = host.find(*step);
        if (at != host.end()) ranks = at->second.ranks;
        return at != host.end() && at->second.parts.contains(part);
      };
      const auto holder = std::find_if(all.begin(), all.end(), has);
      whole = holder != all.end();
      holders.push_back(static_cast<size_t>(holder - all.begin()));
    }
    if (whole) return std::pair(*step, std::move(holders));
  }
  return std::nullopt;
}

}  // namespace

MirrorPartners mirror_partners(const std::vector<std::vector<int>>& hosts, int rank) {
  MirrorPartners partners;
  for (size_t h = 0; h < hosts.size(); ++h) {
    const std::vector<int>& next = hosts[(h + 1) % hosts.size()];
    for (size_t k = 0; k < hosts[h].size(); ++k) {
      const int to = next[k % next.size()];
      if (hosts[h][k] == rank) partners.to = to;
      if (to == rank) partners.from.push_back(hosts[h][k]);
    }
  }
  return partners;
}

Mirror::Mirror(MirrorOptions options, Communicator* communicator, FlightRecorder* recorder)
    : options_(std::move(options)), communicator_(communicator), recorder_(recorder) {}

Mirror::~Mirror() = default;

absl::StatusOr<std::unique_ptr<Mirror>> Mirror::open(const MirrorOptions& options, const std::string& checkpoints,
                                                     bool resumes, Communicator* communicator,
                                                     FlightRecorder* recorder) {
  std::unique_ptr<Mirror> m(new Mirror(options, communicator, recorder));
  PARTITA_RETURN_IF_ERROR(m->know_run(checkpoints, resumes));
  PARTITA_RETURN_IF_ERROR(all_ok(communicator, m->make_folder(), "making a folder in memory"));
  PARTITA_RETURN_IF_ERROR(m->find_hosts());
  PARTITA_RETURN_IF_ERROR(all_ok(communicator, m->name_run(checkpoints), "naming the run"));
  m->keep_only(-1, Left::kUnfinished);
  if (!resumes) m->keep_only(-1, Left::kComplete);
  return m;
}

// A number that the folder of the checkpoints keeps, so that another run's copies are not taken for this one's.
absl::Status Mirror::know_run(const std::string& checkpoints, bool resumes) {
  const std::string path = checkpoints + kRunFile;
  int64_t mine = 0;
  if (const auto file = MappedFile::open(path); resumes && file.ok())
    std::istringstream(std::string(file->text())) >> std::hex >> mine;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> all, all_gather(communicator_, {&mine, 1}, "mirror: the run"));
  const auto known = std::find_if(all.begin(), all.end(), [](int64_t id) { return id != 0; });
  int64_t run = 0;
  if (known != all.end()) {
    run = *known;
  } else if (communicator_ == nullptr || communicator_->rank() == 0) {
    std::random_device random;
    run = ((int64_t{random()} << 31) ^ random()) & INT64_MAX;
  }
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&run, 1}, ReduceOp::kMax, "mirror: the run"));
  run_ = static_cast<uint64_t>(run);
  return absl::OkStatus();
}

absl::Status Mirror::name_run(const std::string& checkpoints) const {
  if (!leads()) return absl::OkStatus();
  std::error_code ignored;
  fs::create_directories(checkpoints, ignored);
  return write_file_atomically(checkpoints + kRunFile, fmt::format("{:x}\n", run_), Durable::kNo);
}

absl::Status Mirror::make_folder() {
  folder_ = fmt::format("{}/partita-{}-{:x}", options_.in, ::geteuid(), run_);
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return file_error("make the folder", folder_, errno);
  return check_private_file(folder_);
}

absl::Status Mirror::find_hosts() {
  struct stat info {};
  if (::stat(folder_.c_str(), &info) != 0) return file_error("look at", folder_, errno);
  const std::array<int64_t, 3> mine = {static_cast<int64_t>(host_key()), static_cast<int64_t>(info.st_dev),
                                       static_cast<int64_t>(info.st_ino)};
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> all, all_gather(communicator_, mine, "mirror: hosts"));
  std::map<std::vector<int64_t>, size_t> index;
  for (size_t rank = 0; rank * mine.size() < all.size(); ++rank) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(rank * mine.size());
    const auto [at, fresh] = index.emplace(std::vector<int64_t>(begin, begin + mine.size()), hosts_.size());
    if (fresh) hosts_.emplace_back();
    hosts_[at->second].push_back(static_cast<int>(rank));
  }
  if (hosts_.size() < 2) {
    ::rmdir(folder_.c_str());
    return absl::FailedPreconditionError(
        cat("--mirror keeps a copy in the memory of another host, and all ranks share ", quote(options_.in, 1000),
            ": leave it out, or start them on several hosts"));
  }
  partners_ = mirror_partners(hosts_, communicator_->rank());
  std::vector<int> everybody, first;
  for (int rank = 0; rank < communicator_->size(); ++rank) everybody.push_back(rank);
  for (const std::vector<int>& host : hosts_) first.push_back(host[0]);
  PARTITA_ASSIGN_OR_RETURN(group_, communicator_->create_group(everybody));
  PARTITA_ASSIGN_OR_RETURN(leaders_, communicator_->create_group(first));
  return absl::OkStatus();
}

bool Mirror::leads() const {
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& host) { return host[0] == communicator_->rank(); });
}

absl::StatusOr<std::string> Mirror::told(int64_t bytes) const {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> all, all_gather(communicator_, {&bytes, 1}, "mirror: bytes"));
  int64_t most = 0, largest = 0;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    // Of its own and of the host before, two each; and the copy that is written from.
    int64_t own = 0, other = 0;
    for (int rank : hosts_[h]) own += all[static_cast<size_t>(rank)];
    for (int rank : hosts_[(h + hosts_.size() - 1) % hosts_.size()]) other += all[static_cast<size_t>(rank)];
    most = std::max(most, 3 * own + 2 * other);
  }
  for (int64_t of_rank : all) largest = std::max(largest, of_rank);
  return fmt::format(
      "mirror: every {} steps each rank sends its part, at most {:.3g} MB, to another host's memory; {:.3g} MB of a "
      "host's memory at most, in {}",
      options_.every, static_cast<double>(largest) / 1e6, static_cast<double>(most) / 1e6, options_.in);
}

// One file, from the rank that holds it to the hosts that lack it; the leaders alone.
absl::Status Mirror::bring(const std::string& folder, const std::string& name, int holder, bool wanted) {
  const int me = communicator_->rank();
  const std::string path = cat(folder, "/", name);
  MappedFile source;
  absl::Status status;
  if (hosts_[static_cast<size_t>(holder)][0] == me) {
    auto opened = MappedFile::open(path);
    status = opened.status();
    if (opened.ok()) source = *std::move(opened);
  }
  int64_t size = source.size();
  PARTITA_RETURN_IF_ERROR(broadcast(communicator_, leaders_, DType::kI64, 1, &size, holder, "mirror"));
  std::unique_ptr<AtomicFile> file;
  if (wanted) {
    auto created = create_file(path, size);
    status.Update(created.status());
    if (created.ok()) file = *std::move(created);
  }
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(size, kChunk)));
  for (int64_t at = 0; at < size; at += kChunk) {
    const size_t count = static_cast<size_t>(chunk_at(size, at));
    if (source.size() > 0) std::copy_n(source.bytes().data() + at, count, chunk.data());
    PARTITA_RETURN_IF_ERROR(
        broadcast(communicator_, leaders_, DType::kU8, static_cast<int64_t>(count), chunk.data(), holder, "mirror"));
    if (file != nullptr && status.ok()) status = file->write_at(at, {chunk.data(), count});
  }
  if (file != nullptr && status.ok()) status = file->commit(Durable::kNo);
  return status;
}

absl::StatusOr<std::string> Mirror::gather(int64_t above) {
  std::vector<std::map<int64_t, Holding>> all;
  for (const std::vector<int>& host : hosts_) {
    std::string text = host[0] == communicator_->rank() ? describe_holdings(folder_, above) : "";
    PARTITA_RETURN_IF_ERROR(broadcast_text(communicator_, text, "mirror: what hosts hold", host[0]));
    all.push_back(parse_holdings(text));
  }
  const auto newest = newest_whole(all);
  keep_only(newest ? newest->first : -1, Left::kComplete);
  if (!newest) return "";
  const auto& [step, holders] = *newest;
  const std::string folder = cat(folder_, "/", checkpoint_name(step));
  absl::Status status;
  if (leads()) {
    std::error_code error;
    fs::create_directories(folder, error);
    // The manifest comes last: without it there is no checkpoint.
    for (size_t part = 0; part <= holders.size(); ++part) {
      const bool last = part == holders.size();
      const auto lacks = [&](const auto& host) {
        const auto at = host.find(step);
        return at == host.end() || (!last && !at->second.parts.contains(static_cast<int64_t>(part)));
      };
      if (std::none_of(all.begin(), all.end(), lacks)) continue;
      size_t mine = 0;
      while (hosts_[mine][0] != communicator_->rank()) ++mine;
      const auto has_step = [&](const auto& host) { return host.contains(step); };
      const size_t holder =
          last ? static_cast<size_t>(std::find_if(all.begin(), all.end(), has_step) - all.begin()) : holders[part];
      status.Update(bring(folder, last ? kCheckpointManifest : box_file(static_cast<int64_t>(part)),
                          static_cast<int>(holder), status.ok() && lacks(all[mine])));
      if (!communicator_->failure().ok()) return communicator_->failure();
    }
  }
  const absl::Status gathered = all_ok(communicator_, status, "gathering the mirrored states");
  if (gathered.ok() && communicator_->rank() == 0)
    std::fprintf(stderr, "note: the states of step %lld are in the memory of hosts that are left\n",
                 static_cast<long long>(step));
  if (gathered.ok()) return folder;
  if (!communicator_->failure().ok()) return gathered;
  if (!status.ok())
    std::fprintf(stderr, "warning: the mirrored states of step %lld cannot be used: %s\n", static_cast<long long>(step),
                 std::string(status.message()).c_str());
  return "";
}

absl::Status Mirror::save(CheckpointManifest head, const std::vector<HeldState>& states,
                          std::span<const int64_t> coordinates) {
  if (state_ != State::kIdle) {
    tell_once(cat("note: the copy before is still on its way: that of step ", head.step,
                  " is left out, and so will others be; --mirror with more steps is enough"));
    return absl::OkStatus();
  }
  head.shared = false;
  head.ranks = communicator_->size();
  const int64_t step = head.step;
  writer_ = std::make_unique<CheckpointWriter>(folder_, false, communicator_, copy_, recorder_);
  writer_->write_owned_only();
  const absl::Status begun = writer_->begin(std::move(head), states, coordinates);
  if (begun.ok()) {
    state_ = State::kWriting;
    return absl::OkStatus();
  }
  writer_.reset();
  if (!communicator_->failure().ok()) return begun;
  tell_once(cat("warning: the states of step ", step, " were not mirrored: ", begun.message()));
  return absl::OkStatus();
}

bool Mirror::busy() const {
  if (state_ == State::kIdle) return false;
  if (state_ == State::kSending) return sent_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  return !writer_->written();
}

bool Mirror::failed() const {
  if (state_ == State::kIdle || busy()) return false;
  return state_ == State::kSending ? !sent_.get().ok() : !writer_->status().ok();
}

absl::Status Mirror::settle(bool busy, bool failed) {
  if (state_ == State::kIdle || busy) return absl::OkStatus();
  if (failed) {
    const absl::Status mine = state_ == State::kSending ? sent_.get() : writer_->status();
    tell_once(cat("warning: the states of step ", writer_->manifest().step,
                  " were not mirrored: ", mine.ok() ? "another rank failed" : std::string(mine.message())));
    writer_->discard();
    writer_.reset();
    state_ = State::kIdle;
    return absl::OkStatus();
  }
  switch (state_) {
    case State::kWriting:
      sent_ = std::async(std::launch::async, [this] { return exchange(); }).share();
      state_ = State::kSending;
      return absl::OkStatus();
    case State::kSending:
      state_ = State::kPublishing;
      return writer_->commit();
    default:
      keep_only(writer_->manifest().step, Left::kComplete);
      writer_.reset();
      state_ = State::kIdle;
      return absl::OkStatus();
  }
}

// Sizes first, then chunk by chunk in turn. What was started is waited for, whatever has failed: its memory is in use.
absl::Status Mirror::exchange() {
  const std::string folder = writer_->partial();
  PARTITA_ASSIGN_OR_RETURN(const MappedFile own, MappedFile::open(cat(folder, "/", box_file(communicator_->rank()))));
  std::vector<Arriving> files;
  for (int from : partners_.from) files.push_back({from, 0, nullptr, {}});
  absl::Status status, talk;
  const auto turn = [&](DType dtype, int64_t count, const void* data, const auto& receive) {
    std::vector<Ticket> tickets;
    if (count > 0)
      tickets.push_back(communicator_->start(
          message(CollectiveKind::kSend, group_, partners_.to, dtype, count, const_cast<void*>(data))));
    for (Arriving& file : files) {
      const auto [buffer, expected] = receive(file);
      if (expected > 0)
        tickets.push_back(
            communicator_->start(message(CollectiveKind::kRecv, group_, file.from, dtype, expected, buffer)));
    }
    for (const Ticket ticket : tickets) talk.Update(communicator_->wait(ticket));
  };
  int64_t size = own.size(), most = size;
  turn(DType::kI64, 1, &size, [](Arriving& file) { return std::pair<void*, int64_t>(&file.size, 1); });
  PARTITA_RETURN_IF_ERROR(talk);
  for (Arriving& file : files) {
    most = std::max(most, file.size);
    file.chunk.resize(static_cast<size_t>(std::min(file.size, kChunk)));
    auto created = create_file(cat(folder, "/", box_file(file.from)), file.size);
    status.Update(created.status());
    if (created.ok()) file.file = *std::move(created);
  }
  for (int64_t at = 0; at < most && talk.ok(); at += kChunk) {
    turn(DType::kU8, chunk_at(size, at), own.bytes().data() + at,
         [&](Arriving& file) { return std::pair<void*, int64_t>(file.chunk.data(), chunk_at(file.size, at)); });
    for (Arriving& file : files) {
      const size_t count = static_cast<size_t>(chunk_at(file.size, at));
      if (talk.ok() && status.ok() && count > 0) status = file.file->write_at(at, {file.chunk.data(), count});
    }
  }
  PARTITA_RETURN_IF_ERROR(talk);
  for (Arriving& file : files) {
    if (status.ok()) status = file.file->commit(Durable::kNo);
  }
  return status;
}

// A rank of this host may have begun with the next one: what is unfinished stays.
void Mirror::keep_only(int64_t step, Left left) const {
  std::error_code error, ignored;
  std::vector<fs::path> others;
  const std::string kept = step >= 0 ? checkpoint_name(step) : "";
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name != kept && name.starts_with(".") == (left == Left::kUnfinished)) others.push_back(at->path());
  }
  for (const fs::path& path : others) fs::remove_all(path, ignored);
}

void Mirror::drop() {
  if (sent_.valid()) sent_.wait();
  if (writer_ != nullptr) writer_->discard();
  writer_.reset();
  state_ = State::kIdle;
  keep_only(-1, Left::kComplete);
}

void Mirror::forget() {
  drop();
  std::error_code ignored;
  fs::remove(folder_, ignored);  // by the last of a host, when it is empty
}

void Mirror::tell_once(const std::string& text) {
  if (!told_ && communicator_->rank() == 0) std::fprintf(stderr, "%s\n", text.c_str());
  told_ = true;
}

}  // namespace partita::runtime
