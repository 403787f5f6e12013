// A client's TLS.
#pragma once
#include <arpa/inet.h>

#include <string>

#include "transport/tls_context.h"
#include "abi/client.h"

namespace sharded_infer::client {

class Tls {
 public:
  // Throws std::runtime_error where the files cannot be used.
  Tls(const openssl::Library& library, const Settings& settings)
      : library_(library),
        context_(library, library.client_method(),
                 {settings.ca, or_empty(settings.certificate), or_empty(settings.key)}, configure) {
  }

  // A new connection's state, which checks the server's name, or null.
  openssl::Ssl* connect(int descriptor, const char* name) {
    openssl::Ssl* ssl = context_.connection();
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

  static bool configure(const openssl::Library& library, openssl::Context* context,
                        const transport::TlsContext::Files& files) {
    const std::string &ca = files[0], &certificate = files[1], &key = files[2];
    library.set_verify(context, openssl::kVerifyPeer, nullptr);
    static const unsigned char http2[] = {2, 'h', '2'};
    // 0 is success, of this function alone.
    return library.offer_protocols(context, http2, sizeof http2) == 0 &&
           library.load_authorities(context, ca.c_str(), nullptr) == 1 &&
           (certificate.empty() ||
            transport::TlsContext::use_certificate(library, context, certificate, key));
  }

  const openssl::Library& library_;
  transport::TlsContext context_;
};

}  // namespace sharded_infer::client
