// Runs the portable kernels on cases from standard input and writes their results to standard
// output.
//
// A case is nine int64 numbers, whose first is the kind, and its arrays. A result is the output's
// bytes. What a kernel is to write is filled with 0xff first, NaN as a number.
#include "abi/dense.h"
#include "abi/machine.h"
#include "abi/lookup.h"
#include "abi/encode.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace sharded_infer;

namespace {

enum Kind : std::int64_t { kLookup, kDenseStep, kEncoding };

template <typename Element>
std::vector<Element> read(std::int64_t count) {
  std::vector<Element> elements(count);
  if (std::fread(elements.data(), sizeof(Element), count, stdin) != std::size_t(count))
    std::exit(2);
  return elements;
}

std::vector<std::uint8_t> unwritten(std::int64_t bytes) {
  return std::vector<std::uint8_t>(bytes, 0xff);
}

void write(const std::vector<std::uint8_t>& bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
}

float* floats(std::vector<std::uint8_t>& bytes) { return reinterpret_cast<float*>(bytes.data()); }

void look_up(const std::int64_t* header) {
  const std::int64_t format = header[1], bf16 = header[2], count = header[3], batch = header[4];
  const std::int64_t ids = header[5], weighted = header[6], memory_bytes = header[7];
  const auto described = read<std::int64_t>(5 * count);
  const auto memory = read<std::uint8_t>(memory_bytes);
  const auto values = read<std::int64_t>(ids), lengths = read<std::int64_t>(count * batch);
  const auto weights = read<float>(weighted ? ids : 0);
  std::vector<Feature> features(count);
  std::int64_t width = 0;
  for (std::int64_t number = 0; number < count; ++number) {
    const std::int64_t* one = described.data() + 5 * number;
    features[number] = {memory.data() + one[0], one[1], one[2], one[3], std::int32_t(one[4])};
    width += one[2];
  }
  auto out = unwritten(batch * width * (bf16 ? 2 : 4));
  const Lookup lookup{features.data(),   count,          batch,
                      values.data(),     lengths.data(), weighted ? weights.data() : nullptr,
                      out.data(),        width,          std::int32_t(format),
                      std::int32_t(bf16)};
  sharded_infer_lookup(kBaseline, &lookup);
  write(out);
}

void step(const std::int64_t* header) {
  const std::int64_t rows = header[1], width = header[2], crossed = header[3], bf16 = header[4];
  const std::int64_t low_kind = header[5], zero_point = header[6], numbers = rows * width;
  const auto values = read<float>(numbers), first = read<float>(crossed ? numbers : 0);
  const auto factor = read<std::uint8_t>(crossed ? numbers * (bf16 ? 2 : 4) : 0);
  const auto scale = read<float>(width);
  auto out = unwritten(4 * numbers), low = unwritten(low_kind == kBfloats ? 2 * numbers : numbers);
  auto poison = unwritten(4 * rows);
  const DenseStep step{values.data(),
                       crossed ? first.data() : nullptr,
                       crossed ? factor.data() : nullptr,
                       scale.data(),
                       floats(out),
                       low.data(),
                       floats(poison),
                       rows,
                       width,
                       float(zero_point),
                       std::int32_t(bf16),
                       std::int32_t(low_kind)};
  sharded_infer_dense_step(kBaseline, &step);
  write(out);
  if (low_kind != kNothing) write(low);
}

void encode(const std::int64_t* header) {
  const std::int64_t bits = header[1], clip = header[2], count = header[3], dim = header[4];
  const auto rows = read<float>(count * dim);
  auto stored = unwritten(count * (4 + (dim * bits + 7) / 8));
  auto errors = unwritten(4 * count), minmax = errors, squares = errors, largest = errors;
  Refusal refusal;
  const Encoding encoding{rows.data(),
                          count,
                          dim,
                          std::int32_t(bits),
                          std::int32_t(clip),
                          stored.data(),
                          floats(errors),
                          floats(minmax),
                          floats(squares),
                          floats(largest)};
  const std::int64_t encoded = sharded_infer_encode(kBaseline, &encoding, &refusal);
  if (encoded != count) std::exit(3);
  for (const auto* part : {&stored, &errors, &squares, &largest}) write(*part);
}

}  // namespace

int main() {
  std::int64_t header[9];
  while (std::fread(header, sizeof header, 1, stdin) == 1) {
    if (header[0] == kLookup) look_up(header);
    if (header[0] == kDenseStep) step(header);
    if (header[0] == kEncoding) encode(header);
  }
}
