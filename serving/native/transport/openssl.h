// The part of OpenSSL 3's interface that is used, as its own headers declare it.
//
// The libraries are looked for when a server has TLS or tokens, or a client TLS, not when this is
// compiled or loaded. With SHARDED_INFER_LINKED_OPENSSL they are part of this library (setup.py).
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>
#include <string>

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

struct Library {
  const Method* (*server_method)();
  const Method* (*client_method)();
  Context* (*context_new)(const Method*);
  void (*context_free)(Context*);
  long (*context_control)(Context*, int command, long argument, void* pointer);
  unsigned long (*set_options)(Context*, unsigned long);
  int (*use_chain)(Context*, const char* file);
  int (*use_key)(Context*, const char* file, int type);
  int (*check_key)(const Context*);
  int (*load_authorities)(Context*, const char* file, const char* folder);
  void* (*load_client_names)(const char* file);
  void (*set_client_names)(Context*, void*);
  void (*set_verify)(Context*, int mode, void* callback);
  void (*set_choose_protocol)(Context*, ChooseProtocol, void* user);
  int (*offer_protocols)(Context*, const unsigned char*, unsigned);  // 0: done
  void (*set_password)(Context*, AskPassword);
  int (*set_session_context)(Context*, const unsigned char*, unsigned);
  Ssl* (*ssl_new)(Context*);
  void (*ssl_free)(Ssl*);
  int (*set_fd)(Ssl*, int);
  long (*ssl_control)(Ssl*, int command, long argument, void* pointer);
  int (*require_name)(Ssl*, const char*);
  Parameters* (*parameters)(Ssl*);
  int (*require_address)(Parameters*, const char*);
  int (*accept)(Ssl*);
  int (*connect)(Ssl*);
  long (*verify_result)(const Ssl*);
  const char* (*verify_text)(long);
  int (*read)(Ssl*, void*, int);
  int (*write)(Ssl*, const void*, int);
  int (*shutdown)(Ssl*);
  int (*pending)(const Ssl*);
  int (*error)(const Ssl*, int);
  void (*chosen_protocol)(const Ssl*, const unsigned char** name, unsigned* bytes);
  void (*clear_errors)();
  unsigned long (*next_error)();
  void (*error_text)(unsigned long, char*, std::size_t);
  unsigned char* (*sha256)(const unsigned char*, std::size_t, unsigned char*);
  int (*same_bytes)(const void*, const void*, std::size_t);  // constant in time; 0: the same
  const char* (*version)(int kind);                          // 0: its name, number and day

#ifdef SHARDED_INFER_LINKED_OPENSSL
#define SHARDED_INFER_FIND(library, symbol, function)                  \
  {                                                                    \
    extern void linked_##symbol() __asm__(#symbol);                    \
    function = reinterpret_cast<decltype(function)>(&linked_##symbol); \
  }
  static constexpr bool kIsLinked = true;
  Library() {
#else
#define SHARDED_INFER_FIND(library, symbol, function) find(library, #symbol, function);
  static constexpr bool kIsLinked = false;
  // Throws std::runtime_error where the libraries are not installed.
  Library() {
    void* ssl = open("libssl.so.3");
    void* crypto = open("libcrypto.so.3");
#endif
    SHARDED_INFER_FIND(ssl, TLS_server_method, server_method)
    SHARDED_INFER_FIND(ssl, TLS_client_method, client_method)
    SHARDED_INFER_FIND(ssl, SSL_CTX_new, context_new)
    SHARDED_INFER_FIND(ssl, SSL_CTX_free, context_free)
    SHARDED_INFER_FIND(ssl, SSL_CTX_ctrl, context_control)
    SHARDED_INFER_FIND(ssl, SSL_CTX_set_options, set_options)
    SHARDED_INFER_FIND(ssl, SSL_CTX_use_certificate_chain_file, use_chain)
    SHARDED_INFER_FIND(ssl, SSL_CTX_use_PrivateKey_file, use_key)
    SHARDED_INFER_FIND(ssl, SSL_CTX_check_private_key, check_key)
    SHARDED_INFER_FIND(ssl, SSL_CTX_load_verify_locations, load_authorities)
    SHARDED_INFER_FIND(ssl, SSL_load_client_CA_file, load_client_names)
    SHARDED_INFER_FIND(ssl, SSL_CTX_set_client_CA_list, set_client_names)
    SHARDED_INFER_FIND(ssl, SSL_CTX_set_verify, set_verify)
    SHARDED_INFER_FIND(ssl, SSL_CTX_set_alpn_select_cb, set_choose_protocol)
    SHARDED_INFER_FIND(ssl, SSL_CTX_set_alpn_protos, offer_protocols)
    SHARDED_INFER_FIND(ssl, SSL_CTX_set_default_passwd_cb, set_password)
    SHARDED_INFER_FIND(ssl, SSL_CTX_set_session_id_context, set_session_context)
    SHARDED_INFER_FIND(ssl, SSL_new, ssl_new)
    SHARDED_INFER_FIND(ssl, SSL_free, ssl_free)
    SHARDED_INFER_FIND(ssl, SSL_set_fd, set_fd)
    SHARDED_INFER_FIND(ssl, SSL_ctrl, ssl_control)
    SHARDED_INFER_FIND(ssl, SSL_set1_host, require_name)
    SHARDED_INFER_FIND(ssl, SSL_get0_param, parameters)
    SHARDED_INFER_FIND(ssl, SSL_accept, accept)
    SHARDED_INFER_FIND(ssl, SSL_connect, connect)
    SHARDED_INFER_FIND(ssl, SSL_get_verify_result, verify_result)
    SHARDED_INFER_FIND(ssl, SSL_read, read)
    SHARDED_INFER_FIND(ssl, SSL_write, write)
    SHARDED_INFER_FIND(ssl, SSL_shutdown, shutdown)
    SHARDED_INFER_FIND(ssl, SSL_pending, pending)
    SHARDED_INFER_FIND(ssl, SSL_get_error, error)
    SHARDED_INFER_FIND(ssl, SSL_get0_alpn_selected, chosen_protocol)
    SHARDED_INFER_FIND(crypto, X509_VERIFY_PARAM_set1_ip_asc, require_address)
    SHARDED_INFER_FIND(crypto, X509_verify_cert_error_string, verify_text)
    SHARDED_INFER_FIND(crypto, ERR_clear_error, clear_errors)
    SHARDED_INFER_FIND(crypto, ERR_get_error, next_error)
    SHARDED_INFER_FIND(crypto, ERR_error_string_n, error_text)
    SHARDED_INFER_FIND(crypto, SHA256, sha256)
    SHARDED_INFER_FIND(crypto, CRYPTO_memcmp, same_bytes)
    SHARDED_INFER_FIND(crypto, OpenSSL_version, version)
  }
#undef SHARDED_INFER_FIND

  // What OpenSSL says of the last failure.
  std::string last_error() const {
    char text[256] = "no reason was given";
    if (const unsigned long error = next_error()) error_text(error, text, sizeof text);
    return text;
  }

#ifndef SHARDED_INFER_LINKED_OPENSSL
 private:
  static void* open(const char* name) {
    // Never closed. Python's own ssl module may have opened the same one.
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(std::string(name) + " is not installed");
    return handle;
  }
  template <class Function>
  static void find(void* handle, const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, symbol));
    if (function == nullptr) throw std::runtime_error(std::string("OpenSSL has no ") + symbol);
  }
#endif
};

}  // namespace sharded_infer::openssl
