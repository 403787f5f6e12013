// A server's TLS: one OpenSSL context, made anew when its files have changed.
#pragma once
#include <stdexcept>
#include <string>

#include "openssl.h"
#include "tls_files.h"

namespace sharded_infer::transport {

class Tls {
 public:
  // Throws std::runtime_error where the files cannot be used.
  Tls(const openssl::Library& library, const char* certificate, const char* key,
      const char* client_ca)
      : library_(library),
        files_({certificate, key, client_ca == nullptr ? "" : client_ca}),
        context_(make()) {}
  ~Tls() { library_.context_free(context_); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // A new connection's state; files that have changed are used from here on, if they are valid.
  openssl::Ssl* connect(int descriptor) {
    if (files_.have_changed()) {
      try {
        openssl::Context* fresh = make();
        library_.context_free(context_);
        context_ = fresh;
      } catch (const std::runtime_error&) {
        // Files are replaced one after another: the next change is looked at again. Python, which
        // watches them too, says so in the log.
      }
    }
    openssl::Ssl* ssl = library_.ssl_new(context_);
    if (ssl != nullptr) library_.set_fd(ssl, descriptor);
    return ssl;
  }

 private:
  openssl::Context* make() const {
    const std::string &certificate = files_[0], &key = files_[1], &client_ca = files_[2];
    files_.require_regular();
    library_.clear_errors();
    openssl::Context* context = library_.context_new(library_.server_method());
    if (context == nullptr) throw std::runtime_error(library_.last_error());
    library_.context_control(context, openssl::kSetLeastVersion, openssl::kTls12, nullptr);
    library_.context_control(context, openssl::kSetMode, openssl::kModes, nullptr);
    library_.set_options(context, openssl::kNoCompression | openssl::kNoRenegotiation);
    library_.set_choose_protocol(context, choose_http2, nullptr);
    library_.set_password(context, TlsFiles::no_password);
    static const unsigned char name[] = "sharded-infer";
    library_.set_session_context(context, name, sizeof name - 1);
    bool good = library_.use_chain(context, certificate.c_str()) == 1 &&
                library_.use_key(context, key.c_str(), openssl::kPem) == 1 &&
                library_.check_key(context) == 1;
    if (good && !client_ca.empty()) {
      good = library_.load_authorities(context, client_ca.c_str(), nullptr) == 1;
      library_.set_client_names(context, library_.load_client_names(client_ca.c_str()));
      library_.set_verify(context, openssl::kVerifyRequired, nullptr);
    }
    if (!good) {
      const std::string reason = library_.last_error();
      library_.context_free(context);
      throw std::runtime_error(reason);
    }
    return context;
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
  TlsFiles files_;
  openssl::Context* context_;
};

}  // namespace sharded_infer::transport
