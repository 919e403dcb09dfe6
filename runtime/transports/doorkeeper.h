// Lets in the ranks of a run, and nobody else, however many knock.
//
// Before a connection has proved that it knows the job's secret it costs a descriptor and some 200 bytes: what it sends
// stays in the kernel until it is a whole hello of TLS's, of at most 1 KB. Few handshakes are under way at a time.
// Whoever is silent goes when others come, or after seconds.
#pragma once

#include <array>
#include <list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/transports/channel.h"
#include "runtime/transports/tcp_rendezvous.h"

namespace partita::runtime {

inline constexpr uint64_t kRendezvousMagic = 0x5041525449544132ull;  // "PARTITA2"

// The first words of whoever connects, under TLS where there is a secret.
struct Hello {
  uint64_t magic = kRendezvousMagic;
  uint64_t job = 0;
  int32_t world = 0;
  int32_t rank = 0;
  int32_t to = 0;                     // whom it means to reach
  uint16_t control = 0;               // 1 for a control connection, 0 for data
  uint16_t encrypt = 0;               // 1 where data stay under TLS
  uint16_t port = 0;                  // where the rank listens
  std::array<char, 58> address = {};  // numeric, ends with a zero
};
static_assert(sizeof(Hello) == 96);

// Of this rank, to another.
Hello make_hello(const TcpWorld& world, int to, bool control);

struct Guest {
  Channel channel;
  Hello hello;
};

// Says no, in words, to somebody who has proved to belong here.
void refuse(Channel& channel, absl::StatusCode code, std::string_view text);

// Before rank 0's answer: a table (code 0) or the text of a refusal (the status code).
struct Answer {
  uint64_t magic = kRendezvousMagic;
  uint32_t code = 0;
  uint32_t length = 0;
};
inline constexpr size_t kMaxRefusalBytes = 4096;

// Takes in connections until every rank from `first` on has said its hello.
class Doorkeeper {
 public:
  // `key`: null where the kernel says who connects.
  Doorkeeper(const TcpWorld& world, const TlsKey* key, const Fd& listener, bool control, int first)
      : world_(world),
        key_(key),
        listener_(listener),
        control_(control),
        first_(first),
        guests_(static_cast<size_t>(world.size)) {}

  // `watched[rank]`: connections that must stay open meanwhile.
  absl::Status run(const std::vector<Channel>& watched, SteadyTime deadline);
  std::vector<Guest>& guests() { return guests_; }

 private:
  enum class Stage { kSilent, kProving, kSaying };
  struct Newcomer {
    Channel channel;
    Stage stage = Stage::kSilent;
    std::array<std::byte, sizeof(Hello)> bytes{};
    size_t got = 0;
    SteadyTime deadline;
  };
  std::vector<int> missing() const;
  bool is_full() const;  // of handshakes
  short events(const Newcomer& newcomer) const;
  void accept();
  bool step(Newcomer& newcomer);  // false when it is to be dropped
  bool open_handshake(Newcomer& newcomer);
  void welcome(Newcomer& newcomer);

  const TcpWorld& world_;
  const TlsKey* const key_;
  const Fd& listener_;
  const bool control_;
  const int first_;
  std::vector<Guest> guests_;
  std::list<Newcomer> newcomers_;
  int unproved_ = 0;  // connections that spoke TLS and did not know the secret
};

}  // namespace partita::runtime
