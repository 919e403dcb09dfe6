// A server of S3's protocol that takes what is written and says nothing of it until it is let go; and lists what it is
// told to.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "gtest/gtest.h"
#include "runtime/launch/launch_environment.h"

namespace partita::runtime {

class HeldServer {
 public:
  explicit HeldServer(std::string listing = "<ListBucketResult></ListBucketResult>")
      : listing_(std::move(listing)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] {
      for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;)
        connections_.emplace_back([this, fd] { serve(fd); });
    });
  }
  // After its clients.
  ~HeldServer() {
    let_go();
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (std::thread& c : connections_) c.join();
    ::close(listener_);
  }
  void let_go() { held_ = false; }
  EnvironmentMap environment() const { return {{"AWS_ENDPOINT_URL", cat("http://127.0.0.1:", port_)}}; }

 private:
  void serve(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
      const size_t head = text.find("\r\n\r\n"), length = text.find("Content-Length: ");
      if (head == text.npos) continue;
      size_t bytes = 0;
      if (length < head) {
        const size_t at = length + 16;
        EXPECT_TRUE(absl::SimpleAtoi(text.substr(at, text.find('\r', at) - at), &bytes));
      }
      if (text.size() < head + 4 + bytes) continue;
      while (text.starts_with("PUT") && held_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const std::string body = text.starts_with("GET") ? listing_ : "";
      const std::string reply = cat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
      EXPECT_EQ(::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL), static_cast<ssize_t>(reply.size()));
      text.clear();
    }
    ::close(fd);
  }

  const std::string listing_;
  const int listener_;
  int port_ = 0;
  std::atomic<bool> held_ = true;
  std::thread acceptor_;
  std::vector<std::thread> connections_;  // of the acceptor, until it has ended
};

}  // namespace partita::runtime
