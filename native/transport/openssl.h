// The part of OpenSSL 3's interface that is used, as its own headers declare it.
//
// The libraries are looked for when a server has TLS or tokens, or a client TLS, not when this is
// compiled or loaded. With SHARDED_INFER_LINKED_OPENSSL they are part of this library (setup.py).
#pragma once
#include <cstddef>
#include <string>

#include "opened_library.h"

namespace sharded_infer::openssl {

struct Context;     // SSL_CTX
struct Ssl;         // SSL
struct Method;      // SSL_METHOD
struct Parameters;  // X509_VERIFY_PARAM

using ChooseProtocol = int (*)(Ssl*, const unsigned char** chosen, unsigned char* chosen_bytes,
                               const unsigned char* offered, unsigned offered_bytes, void* user);
using AskPassword = int (*)(char* to, int bytes, int writing, void* user);

constexpr int kPem = 1;                // SSL_FILETYPE_PEM
constexpr int kVerifyPeer = 1;         // SSL_VERIFY_PEER
constexpr int kVerifyRequired = 3;     // SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT
constexpr int kTlsFailed = 1;          // SSL_ERROR_SSL
constexpr int kWantRead = 2;           // SSL_ERROR_WANT_READ
constexpr int kWantWrite = 3;          // SSL_ERROR_WANT_WRITE
constexpr int kChosen = 0;             // SSL_TLSEXT_ERR_OK
constexpr int kRefused = 2;            // SSL_TLSEXT_ERR_ALERT_FATAL
constexpr int kSetLeastVersion = 123;  // SSL_CTRL_SET_MIN_PROTO_VERSION
constexpr int kSetMode = 33;           // SSL_CTRL_MODE
constexpr int kSetServerName = 55;     // SSL_CTRL_SET_TLSEXT_HOSTNAME, with type 0
constexpr long kTls12 = 0x0303;        // TLS1_2_VERSION
constexpr unsigned long kNoCompression = 1ul << 17;    // SSL_OP_NO_COMPRESSION
constexpr unsigned long kNoRenegotiation = 1ul << 30;  // SSL_OP_NO_RENEGOTIATION
// SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS
constexpr long kModes = 1 | 2 | 16;

#ifdef SHARDED_INFER_LINKED_OPENSSL
#define FIND(library, symbol) SHARDED_INFER_LINKED(symbol)
#else
#define FIND(library, symbol) library.find(#symbol)
#endif

// Making it throws std::runtime_error where the libraries are not installed.
struct Library {
#ifdef SHARDED_INFER_LINKED_OPENSSL
  static constexpr bool kIsLinked = true;
#else
  static constexpr bool kIsLinked = false;
  OpenedLibrary ssl{"libssl.so.3"}, crypto{"libcrypto.so.3"};
#endif
  const Method* (*server_method)() = FIND(ssl, TLS_server_method);
  const Method* (*client_method)() = FIND(ssl, TLS_client_method);
  Context* (*context_new)(const Method*) = FIND(ssl, SSL_CTX_new);
  void (*context_free)(Context*) = FIND(ssl, SSL_CTX_free);
  long (*context_control)(Context*, int command, long argument, void* pointer) = FIND(ssl,
                                                                                      SSL_CTX_ctrl);
  unsigned long (*set_options)(Context*, unsigned long) = FIND(ssl, SSL_CTX_set_options);
  int (*use_chain)(Context*, const char* file) = FIND(ssl, SSL_CTX_use_certificate_chain_file);
  int (*use_key)(Context*, const char* file, int type) = FIND(ssl, SSL_CTX_use_PrivateKey_file);
  int (*check_key)(const Context*) = FIND(ssl, SSL_CTX_check_private_key);
  int (*load_authorities)(Context*, const char* file,
                          const char* folder) = FIND(ssl, SSL_CTX_load_verify_locations);
  void* (*load_client_names)(const char* file) = FIND(ssl, SSL_load_client_CA_file);
  void (*set_client_names)(Context*, void*) = FIND(ssl, SSL_CTX_set_client_CA_list);
  void (*set_verify)(Context*, int mode, void* callback) = FIND(ssl, SSL_CTX_set_verify);
  void (*set_choose_protocol)(Context*, ChooseProtocol,
                              void* user) = FIND(ssl, SSL_CTX_set_alpn_select_cb);
  // 0: done
  int (*offer_protocols)(Context*, const unsigned char*, unsigned) = FIND(ssl,
                                                                          SSL_CTX_set_alpn_protos);
  void (*set_password)(Context*, AskPassword) = FIND(ssl, SSL_CTX_set_default_passwd_cb);
  int (*set_session_context)(Context*, const unsigned char*,
                             unsigned) = FIND(ssl, SSL_CTX_set_session_id_context);
  Ssl* (*ssl_new)(Context*) = FIND(ssl, SSL_new);
  void (*ssl_free)(Ssl*) = FIND(ssl, SSL_free);
  int (*set_fd)(Ssl*, int) = FIND(ssl, SSL_set_fd);
  long (*ssl_control)(Ssl*, int command, long argument, void* pointer) = FIND(ssl, SSL_ctrl);
  int (*require_name)(Ssl*, const char*) = FIND(ssl, SSL_set1_host);
  Parameters* (*parameters)(Ssl*) = FIND(ssl, SSL_get0_param);
  int (*require_address)(Parameters*, const char*) = FIND(crypto, X509_VERIFY_PARAM_set1_ip_asc);
  int (*accept)(Ssl*) = FIND(ssl, SSL_accept);
  int (*connect)(Ssl*) = FIND(ssl, SSL_connect);
  long (*verify_result)(const Ssl*) = FIND(ssl, SSL_get_verify_result);
  const char* (*verify_text)(long) = FIND(crypto, X509_verify_cert_error_string);
  int (*read)(Ssl*, void*, int) = FIND(ssl, SSL_read);
  int (*write)(Ssl*, const void*, int) = FIND(ssl, SSL_write);
  int (*shutdown)(Ssl*) = FIND(ssl, SSL_shutdown);
  int (*pending)(const Ssl*) = FIND(ssl, SSL_pending);
  int (*error)(const Ssl*, int) = FIND(ssl, SSL_get_error);
  void (*chosen_protocol)(const Ssl*, const unsigned char** name,
                          unsigned* bytes) = FIND(ssl, SSL_get0_alpn_selected);
  void (*clear_errors)() = FIND(crypto, ERR_clear_error);
  unsigned long (*next_error)() = FIND(crypto, ERR_get_error);
  void (*error_text)(unsigned long, char*, std::size_t) = FIND(crypto, ERR_error_string_n);
  unsigned char* (*sha256)(const unsigned char*, std::size_t, unsigned char*) = FIND(crypto,
                                                                                     SHA256);
  // constant in time; 0: the same
  int (*same_bytes)(const void*, const void*, std::size_t) = FIND(crypto, CRYPTO_memcmp);
  // 0: its name, number and day
  const char* (*version)(int kind) = FIND(crypto, OpenSSL_version);

  // What OpenSSL says of the last failure.
  std::string last_error() const {
    char text[256] = "no reason was given";
    if (const unsigned long error = next_error()) error_text(error, text, sizeof text);
    return text;
  }
};

#undef FIND

}  // namespace sharded_infer::openssl
