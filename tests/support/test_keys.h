// The Ed25519 keys of RFC 8032, 7.1: the pair of its first test, and the public key of its second.
#pragma once

namespace partita {

inline constexpr const char* kPrivateKey =
    "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE "
    "KEY-----\n";
inline constexpr const char* kPublicKey =
    "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC "
    "KEY-----\n";
inline constexpr const char* kOtherPublicKey =
    "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\n-----END PUBLIC "
    "KEY-----\n";

}  // namespace partita
