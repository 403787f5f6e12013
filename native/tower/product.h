// Products on each instruction set; see abi/product.h.
#pragma once
#include "abi/product.h"

namespace sharded_infer {

#if defined(__x86_64__)
void product_avx2(const Product& product);    // fp32 and bytes
void product_avx512(const Product& product);  // bf16 with its BF16 instructions, bytes with VNNI
#endif

}  // namespace sharded_infer
