// A client's TLS: one OpenSSL context, made anew when its files have changed.
#pragma once
#include <arpa/inet.h>

#include <stdexcept>
#include <string>

#include "../transport/openssl.h"
#include "../transport/tls_files.h"
#include "settings.h"

namespace sharded_infer::client {

class Tls {
 public:
  // Throws std::runtime_error where the files cannot be used.
  Tls(const openssl::Library& library, const Settings& settings)
      : library_(library),
        files_({settings.ca, or_empty(settings.certificate), or_empty(settings.key)}),
        context_(make()) {}
  ~Tls() { library_.context_free(context_); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // A new connection's state, which checks the server's name; files that have changed are used from
  // here on, if they are valid. Null where OpenSSL refuses.
  openssl::Ssl* connect(int descriptor, const char* name) {
    if (files_.have_changed()) {
      try {
        openssl::Context* fresh = make();
        library_.context_free(context_);
        context_ = fresh;
      } catch (const std::runtime_error&) {
        // Files are replaced one after another: the next change is looked at again.
      }
    }
    openssl::Ssl* ssl = library_.ssl_new(context_);
    if (ssl == nullptr) return nullptr;
    // RFC 9525: an address is compared with addresses, and not sent as a name (RFC 6066).
    in6_addr address;
    const bool is_address =
        inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
    const bool good = is_address ? library_.require_address(library_.parameters(ssl), name) == 1
                                 : library_.require_name(ssl, name) == 1 &&
                                       library_.ssl_control(ssl, openssl::kSetServerName, 0,
                                                            const_cast<char*>(name)) == 1;
    if (!good) {
      library_.ssl_free(ssl);
      return nullptr;
    }
    library_.set_fd(ssl, descriptor);
    return ssl;
  }

 private:
  static std::string or_empty(const char* text) { return text == nullptr ? "" : text; }

  openssl::Context* make() const {
    const std::string &ca = files_[0], &certificate = files_[1], &key = files_[2];
    files_.require_regular();
    library_.clear_errors();
    openssl::Context* context = library_.context_new(library_.client_method());
    if (context == nullptr) throw std::runtime_error(library_.last_error());
    library_.context_control(context, openssl::kSetLeastVersion, openssl::kTls12, nullptr);
    library_.context_control(context, openssl::kSetMode, openssl::kModes, nullptr);
    library_.set_options(context, openssl::kNoCompression | openssl::kNoRenegotiation);
    library_.set_password(context, transport::TlsFiles::no_password);
    library_.set_verify(context, openssl::kVerifyPeer, nullptr);
    static const unsigned char http2[] = {2, 'h', '2'};
    // 0 is success, of this function alone.
    bool good = library_.offer_protocols(context, http2, sizeof http2) == 0 &&
                library_.load_authorities(context, ca.c_str(), nullptr) == 1;
    if (good && !certificate.empty())
      good = library_.use_chain(context, certificate.c_str()) == 1 &&
             library_.use_key(context, key.c_str(), openssl::kPem) == 1 &&
             library_.check_key(context) == 1;
    if (!good) {
      const std::string reason = library_.last_error();
      library_.context_free(context);
      throw std::runtime_error(reason);
    }
    return context;
  }

  const openssl::Library& library_;
  transport::TlsFiles files_;
  openssl::Context* context_;
};

}  // namespace sharded_infer::client
