// Whoever does not know the job's secret neither joins nor reads, nor costs the ranks much. Ranks of several hosts are
// here processes that believe so, and network namespaces where the kernel allows them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <fstream>
#include <functional>
#include <random>

#include "runtime/launch/job_secret.h"
#include "runtime/transports/channel.h"
#include "runtime/transports/collective_tcp.h"
#include "runtime/transports/host_address.h"
#include "tests/runtime/transports/rank_process.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

// What strangers may cost in memory. Address sanitizer keeps what was freed for a while.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kMost = 32 << 20;
#else
constexpr int64_t kMost = 1 << 20;
#endif

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kSecret(64, 'a'), kOtherSecret(64, 'b');

// Of a run whose ranks are each on a host of its own, as far as they know.
EnvironmentMap host_environment(int rank, int size, int port, const std::string& secret) {
  EnvironmentMap environment = rank_environment(rank, size, port);
  environment["LOCAL_RANK"] = "0";
  environment["LOCAL_WORLD_SIZE"] = "1";
  environment["PARTITA_JOB_SECRET"] = secret;
  return environment;
}

std::unique_ptr<Process> start(int rank, int size, int port, const std::string& secret = kSecret,
                               const std::string& mode = "disagree", const std::string& encrypt = "") {
  return std::make_unique<Process>(std::vector<std::string>{kProgram, mode, "tcp", "30", encrypt},
                                   host_environment(rank, size, port, secret));
}

void expect_all_well(std::vector<std::unique_ptr<Process>>& ranks) {
  for (auto& rank : ranks) {
    const Ended ended = rank->wait(90);
    EXPECT_EQ(ended.code, 0) << ended.output;
  }
}

Channel connect(int port) {
  auto fd = tcp_connect({.address = "127.0.0.1", .port = static_cast<uint16_t>(port)}, Clock::now() + seconds(20));
  EXPECT_TRUE(fd.ok()) << fd.status();
  return fd.ok() ? Channel(*std::move(fd)) : Channel();
}

void say(Channel& channel, std::string_view words) {
  channel.send_all(std::as_bytes(std::span(words)), Clock::now() + seconds(1)).IgnoreError();
}

// What the process has taken for itself.
int64_t own_bytes(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

TEST(Strangers, RanksWithOneSecret_MeetWithAndWithoutEncryption) {
  for (const std::string encrypt : {"", "encrypt"}) {
    const int port = free_port();
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank : {0, 1, 2}) ranks.push_back(start(rank, 3, port, kSecret, "disagree", encrypt));
    expect_all_well(ranks);
  }
}

// Long messages and short ones, on two lanes that wait for each other's.
TEST(Strangers, WhatIsEncrypted_ComesWhole) {
  const uint16_t port = static_cast<uint16_t>(free_port());
  const auto rank = [&](int me) {
    TcpWorld world{
        .rank = me, .size = 2, .master = {"127.0.0.1", port}, .one_host = false, .secret = kSecret, .encrypt = true};
    auto opened = open_tcp_communicator(world, {.timeout = milliseconds(20000)});
    ASSERT_TRUE(opened.ok()) << opened.status();
    Communicator& communicator = **opened;
    for (const int64_t count : {1, 17, 5000, 300007}) {
      std::vector<float> values(static_cast<size_t>(count), static_cast<float>(me + 1));
      const std::vector<float> mine = values;
      std::vector<float> other(values.size());
      const Ticket sum = communicator.start(
          {.kind = CollectiveKind::kAllReduce, .count = count, .output = values.data(), .label = "sum"});
      const Ticket swap = communicator.start({.kind = CollectiveKind::kPermute,
                                              .count = count,
                                              .input = mine.data(),
                                              .output = other.data(),
                                              .to = 1 - me,
                                              .from = 1 - me});
      ASSERT_TRUE(communicator.wait(sum).ok());
      ASSERT_TRUE(communicator.wait(swap).ok());
      EXPECT_EQ(std::count(values.begin(), values.end(), 3.0f), count);
      EXPECT_EQ(std::count(other.begin(), other.end(), static_cast<float>(2 - me)), count);
    }
  };
  std::thread second([&] { rank(1); });
  rank(0);
  second.join();
}

TEST(Strangers, NoSecret_IsRefusedWithWhatToDo) {
  const Ended ended = start(0, 2, free_port(), "")->wait(20);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("no secret to know each other by"), HasSubstr("PARTITA_JOB_SECRET_FILE")));
}

TEST(Strangers, WrongSecretOfTheRightJob_DoesNotJoinAndStopsNobody) {
  const int port = free_port();
  std::vector<std::unique_ptr<Process>> ranks;
  ranks.push_back(start(0, 2, port));
  const Ended stranger = start(1, 2, port, kOtherSecret)->wait(20);
  EXPECT_EQ(stranger.code, 1);
  EXPECT_THAT(stranger.output, HasSubstr("does not know this job's secret"));
  ranks.push_back(start(1, 2, port));
  expect_all_well(ranks);
}

TEST(Strangers, RankOfAnImpostor_IsNotBelieved) {
  const int port = free_port();
  std::unique_ptr<Process> impostor = start(0, 2, port, kOtherSecret);
  const Ended victim = start(1, 2, port)->wait(20);
  EXPECT_EQ(victim.code, 1);
  EXPECT_THAT(victim.output, HasSubstr("does not know this job's secret"));
  ::kill(impostor->pid(), SIGKILL);
  impostor->wait(5);
}

TEST(Strangers, EncryptionAskedOfSome_IsRefused) {
  const int port = free_port();
  std::unique_ptr<Process> first = start(0, 2, port, kSecret, "disagree", "encrypt");
  EXPECT_THAT(start(1, 2, port)->wait(20).output, HasSubstr("some ranks have --encrypt and others not"));
  ::kill(first->pid(), SIGKILL);
  first->wait(5);
}

// Random bytes, the old hello, a claim of 2^60 bytes, records of TLS that never end, silence: as long as they like.
TEST(Strangers, ManyConnections_CostNoMemoryAndStopNobody) {
  const int port = free_port();
  std::vector<std::unique_ptr<Process>> ranks;
  ranks.push_back(start(0, 2, port));
  std::mt19937 random(1);
  std::string noise(100000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  std::string claim(32, '\xff');
  const uint64_t magic = 0x5041525449544132ull, length = uint64_t{1} << 60;
  std::memcpy(claim.data(), &magic, 8), std::memcpy(claim.data() + 8, &length, 8);
  const std::vector<std::string> words = {noise,
                                          claim,
                                          std::string("\x16\x03\x01\xff\xff", 5) + noise,
                                          std::string("\x16\x03\x01\x02\x00\x01", 6),
                                          "GET / HTTP/1.1\r\n\r\n",
                                          ""};
  { Channel first = connect(port); }  // it listens
  const int64_t before = own_bytes(ranks[0]->pid());
  std::vector<Channel> strangers;
  for (size_t i = 0; i < 1000; ++i) {
    Channel stranger = connect(port);
    if (!stranger.valid()) break;
    say(stranger, std::string_view(words[i % words.size()]).substr(0, i % 7 == 0 ? 100000 : 3000));
    if (strangers.size() < 300) strangers.push_back(std::move(stranger));
  }
  EXPECT_LT(own_bytes(ranks[0]->pid()) - before, kMost);
  ranks.push_back(start(1, 2, port));
  expect_all_well(ranks);
}

// What goes between two ends, both ways.
class Recorder {
 public:
  Recorder(int from, int to) : to_(to) {
    auto listener = tcp_listen({.address = "127.0.0.1", .port = static_cast<uint16_t>(from)});
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { forward(); });
  }
  // What the one who connected said.
  std::string said() {
    thread_.join();
    return said_;
  }

 private:
  void forward() {
    while (!wait_for(listener_, POLLIN, Clock::now() + seconds(30))) return;
    Channel guest(tcp_accept(listener_)), host = connect(to_);
    std::array<std::byte, 4096> bytes;
    for (const auto until = Clock::now() + seconds(60); Clock::now() < until;) {
      std::array<pollfd, 2> polls{pollfd{guest.fd().get(), POLLIN, 0}, pollfd{host.fd().get(), POLLIN, 0}};
      ::poll(polls.data(), polls.size(), 1000);
      for (const auto& [source, target] : {std::pair{&guest, &host}, {&host, &guest}}) {
        const ptrdiff_t moved = source->recv_some(bytes);
        if (moved < 0) return;
        const auto part = std::span(bytes).first(static_cast<size_t>(moved));
        if (source == &guest) said_.append(reinterpret_cast<const char*>(part.data()), part.size());
        if (!target->send_all(part, Clock::now() + seconds(5)).ok()) return;
      }
    }
  }
  const int to_;
  Fd listener_;
  std::string said_;
  std::thread thread_;
};

TEST(Strangers, RecordedSession_ReplayedJoinsNothing) {
  const int port = free_port(), proxy = free_port();
  std::string said;
  {
    Recorder recorder(proxy, port);
    // Rank 1's control connection goes through the recorder; its data connection is to rank 0's port as it sees it.
    std::vector<std::unique_ptr<Process>> ranks;
    ranks.push_back(start(0, 2, port));
    std::unique_ptr<Process> other = start(1, 2, proxy);
    said = recorder.said();
    ::kill(other->pid(), SIGKILL), other->wait(5);
    ::kill(ranks[0]->pid(), SIGKILL), ranks[0]->wait(5);
  }
  ASSERT_GT(said.size(), 300u);
  EXPECT_THAT(said, Not(HasSubstr("127.0.0.1")));  // the hello in it cannot be read
  std::vector<std::unique_ptr<Process>> ranks;
  ranks.push_back(start(0, 2, port));
  { Channel first = connect(port); }  // it listens
  const int64_t before = own_bytes(ranks[0]->pid());
  std::vector<Channel> replays;
  for (int i = 0; i < 7; ++i) {
    replays.push_back(connect(port));
    say(replays.back(), said);
    // The first message alone is taken for a hello; the answer is to nobody who can go on.
    replays.push_back(connect(port));
    say(replays.back(),
        said.substr(0, 5 + static_cast<size_t>(static_cast<uint8_t>(said[3])) * 256 + static_cast<uint8_t>(said[4])));
  }
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_LT(own_bytes(ranks[0]->pid()) - before, kMost);
  ranks.push_back(start(1, 2, port));
  expect_all_well(ranks);
}

// A rank that claims to be far ahead is not held in memory.
TEST(Strangers, MessagesThatNobodyExpects_EndTheRunAtTheLimit) {
  const uint16_t port = static_cast<uint16_t>(free_port());
  absl::Status heard;
  const auto rank = [&](int me) {
    TcpWorld world{.rank = me, .size = 2, .master = {"127.0.0.1", port}, .early_bytes = 1 << 20};
    auto opened = open_tcp_communicator(world, {.timeout = milliseconds(20000)});
    ASSERT_TRUE(opened.ok()) << opened.status();
    Communicator& communicator = **opened;
    const GroupId other = communicator.create_group({0, 1}).value_or(-1);
    std::vector<float> values(1 << 20);
    if (me == 1) {
      communicator
          .run({.kind = CollectiveKind::kSend, .group = other, .count = 1 << 20, .input = values.data(), .to = 0})
          .IgnoreError();
    } else {
      heard = communicator.run({.kind = CollectiveKind::kRecv, .count = 1, .output = values.data(), .from = 1});
    }
  };
  std::thread second([&] { rank(1); });
  rank(0);
  second.join();
  EXPECT_THAT(std::string(heard.message()), HasSubstr("is not expected yet"));
}

TEST(Strangers, OneHost_ListensOnNoPort) {
  const int port = free_port();
  Process first({kProgram, "disagree", "tcp", "20"}, rank_environment(0, 2, port));
  std::this_thread::sleep_for(milliseconds(300));
  const auto fd = tcp_connect({.address = "127.0.0.1", .port = static_cast<uint16_t>(port)}, Clock::now());
  EXPECT_FALSE(fd.ok());
  Process second({kProgram, "disagree", "tcp", "20"}, rank_environment(1, 2, port));
  EXPECT_EQ(second.wait(60).code, 0);
  EXPECT_EQ(first.wait(60).code, 0);
}

TEST(HostAddress, NamesAndInterfaces_AreThisHosts) {
  EXPECT_EQ(own_address("127.0.0.1").value_or(""), "127.0.0.1");
  EXPECT_THAT(own_address("192.0.2.1").status().message(), HasSubstr("no address of this host"));
  ::testing::internal::CaptureStderr();
  const auto until = Clock::now() + milliseconds(10);
  EXPECT_THAT(await_own_address("absent.invalid", until).status().message(), HasSubstr("can look up"));
  EXPECT_GE(Clock::now(), until);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("'absent.invalid' is no name that this host"));
  EXPECT_EQ(interface_address("lo").value_or(""), "127.0.0.1");
  EXPECT_EQ(interface_address("127.0.0.1").value_or(""), "127.0.0.1");
  EXPECT_THAT(interface_address("eth99").status().message(), AllOf(HasSubstr("'eth99'"), HasSubstr("lo (127.0.0.1)")));
}

TEST(JobSecret, FilesOfOthersAndShortOnes_AreRefused) {
  const TempFolder folder;
  const std::string file = folder.write("secret", kSecret + "\n");
  LaunchEnvironment launch{.secret_file = file};
  EXPECT_THAT(read_job_secret(launch).status().message(), HasSubstr("others may read"));
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  EXPECT_EQ(read_job_secret(launch).value_or(""), kSecret);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  EXPECT_THAT(read_job_secret(launch).status().message(), HasSubstr("others may write"));
  EXPECT_THAT(read_job_secret({.secret = "short"}).status().message(), HasSubstr("has 5 characters"));
  EXPECT_NE(make_job_secret().value_or(""), make_job_secret().value_or(""));
}

// Two network namespaces joined by a wire stand for two hosts; a stranger sits on the wire's end.
TEST(Strangers, TwoHosts_MeetOnTheRouteAndListenNowhereElse) {
  const std::string own = "unshare --map-root-user --net --mount sh -c ";
  const std::string wire =
      "mount -t tmpfs none /run && ip netns add other && ip link add here type veth peer name there netns other && "
      "ip addr add 10.77.0.1/24 dev here && ip link set here up && ip link set lo up && "
      "ip -n other addr add 10.77.0.2/24 dev there && ip -n other link set there up";
  if (run_command(own + "'" + wire + "'").code != 0) GTEST_SKIP() << "no network namespaces here, or no ip";
  const std::string rank =
      " WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 "
      "PARTITA_JOB_SECRET=" +
      kSecret + " " + kProgram + " disagree tcp 20";
  const Outcome out = run_command(own + "'" + wire + "; env RANK=0" + rank + " & sleep 0.5; cat /proc/net/tcp; " +
                                  "ip netns exec other env RANK=1" + rank + "; wait'");
  EXPECT_THAT(out.text, AllOf(HasSubstr("rank 0 of 2 over tcp"), HasSubstr("rank 1 of 2 over tcp"),
                              HasSubstr("rank 1 differs from rank 0")));
  EXPECT_THAT(out.text, AllOf(HasSubstr("01004D0A:733C"), Not(HasSubstr("00000000:733C"))));  // 10.77.0.1:29500
}

}  // namespace
}  // namespace partita::runtime
