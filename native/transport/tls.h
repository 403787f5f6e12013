// A server's TLS.
#pragma once
#include "tls_context.h"

namespace sharded_infer::transport {

class Tls {
 public:
  // Throws std::runtime_error where the files cannot be used.
  // `is_http2`: the client must choose it (RFC 7301).
  Tls(const openssl::Library& library, const char* certificate, const char* key,
      const char* client_ca, bool is_http2)
      : library_(library),
        context_(library, library.server_method(),
                 {certificate, key, client_ca == nullptr ? "" : client_ca},
                 is_http2 ? configure_http2 : configure) {}

  // A new connection's state, or null.
  openssl::Ssl* connect(int descriptor) {
    openssl::Ssl* ssl = context_.connection();
    if (ssl != nullptr) library_.set_fd(ssl, descriptor);
    return ssl;
  }

 private:
  static bool configure(const openssl::Library& library, openssl::Context* context,
                        const TlsContext::Files& files) {
    const std::string &certificate = files[0], &key = files[1], &client_ca = files[2];
    static const unsigned char name[] = "sharded-infer";
    library.set_session_context(context, name, sizeof name - 1);
    if (!TlsContext::use_certificate(library, context, certificate, key)) return false;
    if (client_ca.empty()) return true;
    const bool good = library.load_authorities(context, client_ca.c_str(), nullptr) == 1;
    library.set_client_names(context, library.load_client_names(client_ca.c_str()));
    library.set_verify(context, openssl::kVerifyRequired, nullptr);
    return good;
  }

  static bool configure_http2(const openssl::Library& library, openssl::Context* context,
                              const TlsContext::Files& files) {
    library.set_choose_protocol(context, choose_http2, nullptr);
    return configure(library, context, files);
  }

  // The server's part of ALPN (RFC 7301): h2, or the handshake fails.
  static int choose_http2(openssl::Ssl*, const unsigned char** chosen, unsigned char* chosen_bytes,
                          const unsigned char* offered, unsigned offered_bytes, void*) {
    for (unsigned at = 0; at + 1 + offered[at] <= offered_bytes; at += 1 + offered[at]) {
      if (offered[at] == 2 && offered[at + 1] == 'h' && offered[at + 2] == '2') {
        *chosen = offered + at + 1;
        *chosen_bytes = 2;
        return openssl::kChosen;
      }
      if (at + 1 + offered[at] >= offered_bytes) break;
    }
    return openssl::kRefused;
  }

  const openssl::Library& library_;
  TlsContext context_;
};

}  // namespace sharded_infer::transport
