// A server of S3's protocol (s3_server.py), where tools/install_test_services has installed it.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "base/cat.h"
#include "gtest/gtest.h"
#include "runtime/launch/launch_environment.h"
#include "tests/support/command.h"
#include "tests/support/free_port.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {

inline constexpr const char* kKey = "AKIDEXAMPLE";
inline constexpr const char* kSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

inline std::string python() { return std::string(PARTITA_DEPS) + "/services/moto/bin/python"; }

// A server of S3's protocol; each `busy_every`th request is turned away.
class S3Server {
 public:
  explicit S3Server(int busy_every) : port_(free_port()) {
    const std::string start = cat("exec ", python(), " ", PARTITA_TEST_DATA, "/../runtime/objects/s3_server.py ", port_,
                                  " ", kKey, " ", kSecret, " ", busy_every, " >", log_ / "log", " 2>&1 & echo $!");
    pid_ = std::atoi(run_command(start).text.c_str());
    for (int k = 0; k < 600 && !answers(port_); ++k) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(answers(port_)) << TempFolder::read(log_ / "log");
  }
  ~S3Server() {
    if (pid_ > 1) ::kill(pid_, SIGKILL);
  }
  runtime::EnvironmentMap environment() const {
    return {{"AWS_ACCESS_KEY_ID", kKey}, {"AWS_SECRET_ACCESS_KEY", kSecret}, {"AWS_ENDPOINT_URL", url()}};
  }

 private:
  std::string url() const { return cat("http://127.0.0.1:", port_); }
  const TempFolder log_;
  const int port_;
  pid_t pid_ = 0;
};

}  // namespace partita::runtime
