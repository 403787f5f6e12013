// Functions between BEGIN and END are compiled for an instruction set that the machine may lack:
// only who has asked whether it has it (abi/machine.h) calls them. Headers of the standard
// library come before: what they define is shared with code for all machines.
#pragma once

#define SHARDED_INFER_TEXT(...) #__VA_ARGS__
#define SHARDED_INFER_PRAGMA(...) _Pragma(SHARDED_INFER_TEXT(__VA_ARGS__))

#define SHARDED_INFER_AVX2 "avx2,f16c,fma"
#if defined(__clang__)
#define SHARDED_INFER_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,fma"
#define SHARDED_INFER_BEGIN_TARGET(set) \
  SHARDED_INFER_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define SHARDED_INFER_END_TARGET _Pragma("clang attribute pop")
#else
#define SHARDED_INFER_AVX512 \
  "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,fma,prefer-vector-width=512"
#define SHARDED_INFER_BEGIN_TARGET(set) \
  _Pragma("GCC push_options") SHARDED_INFER_PRAGMA(GCC target(set))
#define SHARDED_INFER_END_TARGET _Pragma("GCC pop_options")
#endif
