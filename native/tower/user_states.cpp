#include "tower/user_states.h"

#include <cerrno>
#include <cstring>
#include <pthread.h>
#include <time.h>
#include <vector>

namespace sharded_infer {
namespace {

constexpr std::int64_t kChunkBytes = 2048;
constexpr std::int64_t kMostShards = 16, kShardBytes = 16 << 20;
constexpr std::int64_t kLine = 64;
constexpr int kSampled = 8;  // states that are compared before one leaves
constexpr std::int32_t kNone = -1;
constexpr long kWaitNanoseconds = 50'000'000, kSecond = 1'000'000'000;

struct Entry {
  std::uint64_t name[kNameWords];
  std::uint64_t owner;
  std::int64_t bytes;
  std::uint64_t used;  // the shard's clock when it was read last
  float seconds;       // that it saves
  std::int32_t chunk;  // the first one
  std::int32_t next;   // in its bucket
};

// Followed by entries, buckets, each chunk's next one, marks of refused states, and the chunks.
struct Shard {
  pthread_mutex_t mutex;
  std::int64_t chunks;   // and the most entries
  std::int64_t entries;  // in use, without gaps
  std::uint64_t clock, random;
  std::int32_t free_chunk;
  std::int32_t free_count;
};

struct Header {
  std::uint64_t key[2];
  std::int64_t shards;
  std::int64_t shard_bytes;
};

constexpr std::int64_t up_to(std::int64_t bytes, std::int64_t whole) {
  return (bytes + whole - 1) / whole * whole;
}

constexpr std::int64_t kBytesBefore =
    sizeof(Entry) + 3 * sizeof(std::int32_t);  // of each chunk, before the chunks

std::uint64_t rotated(std::uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

// SipHash-2-4 with a result of 128 bits (Aumasson and Bernstein 2012), of whole words.
class Hash {
 public:
  explicit Hash(const std::uint64_t* key)
      : v_{key[0] ^ 0x736f6d6570736575U, key[1] ^ 0x646f72616e646f6dU ^ 0xeeU,
           key[0] ^ 0x6c7967656e657261U, key[1] ^ 0x7465646279746573U} {}

  void add(const void* words, std::int64_t count) {
    const auto* bytes = static_cast<const std::uint8_t*>(words);
    for (std::int64_t at = 0; at < count; ++at) {
      std::uint64_t word;
      std::memcpy(&word, bytes + at * sizeof word, sizeof word);
      v_[3] ^= word;
      mix(2);
      v_[0] ^= word;
    }
    words_ += static_cast<std::uint64_t>(count);
  }

  void finish(std::uint64_t* name) {
    const std::uint64_t last = words_ * 8 << 56;
    v_[3] ^= last;
    mix(2);
    v_[0] ^= last;
    v_[2] ^= 0xee;
    mix(4);
    name[0] = v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
    v_[1] ^= 0xdd;
    mix(4);
    name[1] = v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  void mix(int rounds) {
    for (; rounds; --rounds) {
      v_[0] += v_[1], v_[1] = rotated(v_[1], 13) ^ v_[0], v_[0] = rotated(v_[0], 32);
      v_[2] += v_[3], v_[3] = rotated(v_[3], 16) ^ v_[2];
      v_[0] += v_[3], v_[3] = rotated(v_[3], 21) ^ v_[0];
      v_[2] += v_[1], v_[1] = rotated(v_[1], 17) ^ v_[2], v_[2] = rotated(v_[2], 32);
    }
  }

  std::uint64_t v_[4];
  std::uint64_t words_ = 0;
};

// A shard and its lock, until the end of the scope.
class LockedShard {
 public:
  // The shard of a state, or of the first block of some.
  LockedShard(void* table, const std::uint64_t* name)
      : LockedShard(table,
                    static_cast<std::int64_t>(name[0] % static_cast<Header*>(table)->shards)) {}

  LockedShard(void* table, std::int64_t number)
      : shard_(reinterpret_cast<Shard*>(static_cast<std::uint8_t*>(table) + kLine +
                                        number * static_cast<Header*>(table)->shard_bytes)) {
    auto* bytes = reinterpret_cast<std::uint8_t*>(shard_) + up_to(sizeof(Shard), kLine);
    const std::int64_t chunks = shard_->chunks;
    entries_ = reinterpret_cast<Entry*>(bytes);
    buckets_ = reinterpret_cast<std::int32_t*>(bytes + chunks * sizeof(Entry));
    next_ = buckets_ + chunks;
    refused_ = reinterpret_cast<std::uint32_t*>(next_ + chunks);
    chunks_ = bytes + up_to(chunks * kBytesBefore, kLine);
    int failed = pthread_mutex_trylock(&shard_->mutex);
    if (failed == EBUSY) {
      timespec until;
      clock_gettime(CLOCK_REALTIME, &until);
      until.tv_nsec += kWaitNanoseconds;
      if (until.tv_nsec >= kSecond) until.tv_sec += 1, until.tv_nsec -= kSecond;
      failed = pthread_mutex_timedlock(&shard_->mutex, &until);
    }
    if (failed == EOWNERDEAD) {
      empty();
      pthread_mutex_consistent(&shard_->mutex);
    }
    is_locked_ = !failed || failed == EOWNERDEAD;
  }
  ~LockedShard() {
    if (is_locked_) pthread_mutex_unlock(&shard_->mutex);
  }
  // False: another process holds it, such as one that is stopped. States are then neither read nor
  // kept.
  explicit operator bool() const { return is_locked_; }
  LockedShard(const LockedShard&) = delete;
  LockedShard& operator=(const LockedShard&) = delete;

  void empty() {
    shard_->entries = 0;
    shard_->free_count = static_cast<std::int32_t>(shard_->chunks);
    shard_->free_chunk = 0;
    for (std::int64_t at = 0; at < shard_->chunks; ++at) {
      buckets_[at] = kNone;
      next_[at] = static_cast<std::int32_t>(at) + 1;
    }
  }

  Entry* find(const std::uint64_t* name) {
    for (std::int32_t at = *bucket(name); at != kNone; at = entries_[at].next)
      if (!std::memcmp(entries_[at].name, name, sizeof entries_[at].name)) return &entries_[at];
    return nullptr;
  }

  // A clock's time; each state read at once has one of its own, the first the latest, because later
  // blocks are worth nothing without those before.
  std::uint64_t now(std::int64_t count) {
    return shard_->clock += static_cast<std::uint64_t>(count);
  }

  // An entry with room for a state, the least worth of others gone. Null: it is too large, or
  // others would have to go, and it comes for the first time: most such states are never read.
  Entry* add(StateOwner* owner, const std::uint64_t* name, std::int64_t bytes, double seconds,
             std::uint64_t used, bool is_always) {
    const std::int64_t wanted = up_to(bytes, kChunkBytes) / kChunkBytes;
    if (wanted > shard_->chunks || !wanted) return nullptr;
    if (shard_->free_count < wanted && !is_always) {
      std::uint32_t& mark = refused_[static_cast<std::uint32_t>(name[1]) % shard_->chunks];
      const auto own = static_cast<std::uint32_t>(name[1] >> 32);
      if (mark != own) {
        mark = own;
        return nullptr;
      }
    }
    for (; shard_->free_count < wanted; evict())
      __atomic_fetch_add(&owner->evictions, 1, __ATOMIC_RELAXED);
    const std::int32_t first = shard_->free_chunk;
    std::int32_t last = first;
    for (std::int64_t at = 1; at < wanted; ++at) last = next_[last];
    shard_->free_chunk = next_[last];
    next_[last] = kNone;
    shard_->free_count -= static_cast<std::int32_t>(wanted);
    Entry& entry = entries_[shard_->entries];
    std::memcpy(entry.name, name, sizeof entry.name);
    entry.owner = owner->name[0];
    entry.bytes = bytes;
    entry.used = used;
    entry.seconds = static_cast<float>(seconds);
    entry.chunk = first;
    std::int32_t* bucket = this->bucket(name);
    entry.next = *bucket;
    *bucket = static_cast<std::int32_t>(shard_->entries++);
    return &entry;
  }

  std::uint8_t* chunk(std::int32_t number) { return chunks_ + number * kChunkBytes; }
  std::int32_t after(std::int32_t number) const { return next_[number]; }

  template <typename One>
  void each(One one) const {
    for (std::int64_t at = 0; at < shard_->entries; ++at) one(entries_[at]);
  }

 private:
  std::int32_t* bucket(const std::uint64_t* name) {
    return &buckets_[name[1] % static_cast<std::uint64_t>(shard_->chunks)];
  }

  void evict() {
    std::int64_t least = 0;
    double least_worth = 0;
    for (int tried = 0; tried < kSampled; ++tried) {
      std::uint64_t& random = shard_->random;
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      const auto at =
          static_cast<std::int64_t>(random % static_cast<std::uint64_t>(shard_->entries));
      const Entry& entry = entries_[at];
      const double age = static_cast<double>(shard_->clock - entry.used) + 1;
      const double worth = entry.seconds / (age * static_cast<double>(entry.bytes));
      if (tried && worth >= least_worth) continue;
      least = at, least_worth = worth;
    }
    remove(static_cast<std::int32_t>(least));
  }

  void remove(std::int32_t number) {
    Entry& entry = entries_[number];
    *link_to(number) = entry.next;
    std::int32_t last = entry.chunk;
    shard_->free_count += 1;
    for (; next_[last] != kNone; last = next_[last]) shard_->free_count += 1;
    next_[last] = shard_->free_chunk;
    shard_->free_chunk = entry.chunk;
    const auto moved = static_cast<std::int32_t>(--shard_->entries);
    if (moved == number) return;
    *link_to(moved) = number;
    entry = entries_[moved];
  }

  std::int32_t* link_to(std::int32_t number) {
    std::int32_t* link = bucket(entries_[number].name);
    while (*link != number) link = &entries_[*link].next;
    return link;
  }

  Shard* shard_;
  bool is_locked_;
  Entry* entries_;
  std::int32_t* buckets_;
  std::int32_t* next_;
  std::uint32_t* refused_;
  std::uint8_t* chunks_;
};

// The bytes of a state, one after another.
class Cursor {
 public:
  Cursor(LockedShard& shard, const Entry& entry) : shard_(shard), chunk_(entry.chunk) {}

  template <typename Copy>  // copy(the state's bytes, how many are done, how many they are)
  void each(std::int64_t bytes, Copy copy) {
    for (std::int64_t done = 0; done < bytes;) {
      if (at_ == kChunkBytes) chunk_ = shard_.after(chunk_), at_ = 0;
      const std::int64_t left = bytes - done, room = kChunkBytes - at_;
      const std::int64_t count = left < room ? left : room;
      copy(shard_.chunk(chunk_) + at_, done, count);
      at_ += count, done += count;
    }
  }

 private:
  LockedShard& shard_;
  std::int32_t chunk_;
  std::int64_t at_ = 0;
};

float from_bfloat(std::uint16_t bits) {
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
  float number;
  std::memcpy(&number, &word, sizeof number);
  return number;
}

std::uint16_t to_bfloat(float number) {
  std::uint32_t word;
  std::memcpy(&word, &number, sizeof word);
  if (number != number) return static_cast<std::uint16_t>(word >> 16 | 0x40);
  return static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// Bytes of one block's state.
std::int64_t bytes_of(const StateBlocks& blocks) {
  std::int64_t width = 0;
  for (std::int64_t at = 0; at < blocks.rows_count; ++at) width += blocks.rows[at].width;
  return kBlockPositions * width * (blocks.is_bfloat ? 2 : 4);
}

// Calls copy(cursor, numbers, width) for each row of a block.
template <typename Copy>
void each_row(const StateBlocks& blocks, std::int64_t block, Copy copy) {
  for (std::int64_t at = 0; at < blocks.rows_count; ++at) {
    const StateRows& rows = blocks.rows[at];
    float* numbers = rows.numbers + block * kBlockPositions * rows.stride;
    for (std::int64_t row = 0; row < kBlockPositions; ++row)
      copy(numbers + row * rows.stride, rows.width);
  }
}

void name_blocks(const PrefixSearch& search, const std::vector<StateColumn>& columns,
                 std::int64_t first, std::int64_t count, std::uint64_t* names) {
  const auto* header = static_cast<const Header*>(search.table);
  for (std::int64_t block = 0; block < count; ++block) {
    std::uint64_t* name = names + block * kNameWords;
    Hash hash(header->key);
    hash.add(block ? name - kNameWords : search.owner->name, kNameWords);
    for (const StateColumn& column : columns)
      hash.add(column.values + (first + block * kBlockPositions) * column.width,
               kBlockPositions * column.width);
    hash.finish(name);
  }
}

// Number of the first blocks that are kept, of at most some.
std::int64_t kept_blocks(const PrefixSearch& search, const std::uint64_t* names,
                         std::int64_t most) {
  if (most < 1) return 0;
  LockedShard shard(search.table, names);
  if (!shard) return 0;
  std::int64_t kept = 0;
  const std::uint64_t used = shard.now(most);
  for (; kept < most; ++kept) {
    Entry* entry = shard.find(names + kept * kNameWords);
    if (!entry) break;
    entry->used = used - static_cast<std::uint64_t>(kept);
  }
  return kept;
}

}  // namespace

bool read_blocks(const StateBlocks& blocks, std::int64_t count) {
  if (!count) return true;
  const std::int64_t bytes = bytes_of(blocks);
  LockedShard shard(blocks.table, blocks.names);
  if (!shard) return false;
  for (std::int64_t block = 0; block < count; ++block) {
    const Entry* entry = shard.find(blocks.names + block * kNameWords);
    if (!entry || entry->bytes != bytes) return false;
    Cursor cursor(shard, *entry);
    each_row(blocks, block, [&](float* numbers, std::int64_t width) {
      if (blocks.is_bfloat)
        cursor.each(width * 2, [&](const std::uint8_t* state, std::int64_t done, std::int64_t n) {
          for (std::int64_t at = 0; at < n / 2; ++at) {
            std::uint16_t bits;
            std::memcpy(&bits, state + at * 2, sizeof bits);
            numbers[done / 2 + at] = from_bfloat(bits);
          }
        });
      else
        cursor.each(width * 4, [&](const std::uint8_t* state, std::int64_t done, std::int64_t n) {
          std::memcpy(reinterpret_cast<std::uint8_t*>(numbers) + done, state, n);
        });
    });
  }
  return true;
}

void write_blocks(const StateBlocks& blocks, std::int64_t first, std::int64_t end, double seconds) {
  if (first >= end) return;
  const std::int64_t bytes = bytes_of(blocks);
  LockedShard shard(blocks.table, blocks.names);
  if (!shard) return;
  // The first missing block decides for those behind it, which came as often and are worth nothing
  // without it.
  bool is_always = blocks.is_always;
  const std::uint64_t used = shard.now(end - first);
  for (std::int64_t block = first; block < end; ++block) {
    const std::uint64_t* name = blocks.names + block * kNameWords;
    if (shard.find(name)) continue;
    const Entry* entry = shard.add(blocks.owner, name, bytes, seconds,
                                   used - static_cast<std::uint64_t>(block - first), is_always);
    if (!entry) return;
    is_always = true;
    Cursor cursor(shard, *entry);
    each_row(blocks, block, [&](const float* numbers, std::int64_t width) {
      if (blocks.is_bfloat)
        cursor.each(width * 2, [&](std::uint8_t* state, std::int64_t done, std::int64_t n) {
          for (std::int64_t at = 0; at < n / 2; ++at) {
            const std::uint16_t bits = to_bfloat(numbers[done / 2 + at]);
            std::memcpy(state + at * 2, &bits, sizeof bits);
          }
        });
      else
        cursor.each(width * 4, [&](std::uint8_t* state, std::int64_t done, std::int64_t n) {
          std::memcpy(state, reinterpret_cast<const std::uint8_t*>(numbers) + done, n);
        });
    });
  }
}

}  // namespace sharded_infer

using namespace sharded_infer;  // NOLINT

extern "C" {

std::int32_t sharded_infer_states_create(void* memory, std::int64_t bytes,
                                         const std::uint64_t* key) {
  auto* header = static_cast<Header*>(memory);
  std::memcpy(header->key, key, sizeof header->key);
  std::int64_t shards = bytes / kShardBytes;
  shards = shards < 1 ? 1 : shards > kMostShards ? kMostShards : shards;
  header->shards = shards;
  header->shard_bytes = (bytes - kLine) / shards / kLine * kLine;
  const std::int64_t room = header->shard_bytes - up_to(sizeof(Shard), kLine) - kLine;
  const std::int64_t chunks = room / (kChunkBytes + kBytesBefore);
  if (chunks < 1 || chunks > INT32_MAX) return 1;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  for (std::int64_t number = 0; number < shards; ++number) {
    auto* shard = reinterpret_cast<Shard*>(static_cast<std::uint8_t*>(memory) + kLine +
                                           number * header->shard_bytes);
    shard->chunks = chunks;
    shard->random = key[0] ^ static_cast<std::uint64_t>(number) ^ 1;
    if (!shard->random) shard->random = 1;
    pthread_mutex_init(&shard->mutex, &attributes);
    LockedShard(memory, number).empty();
  }
  pthread_mutexattr_destroy(&attributes);
  return 0;
}

void sharded_infer_states_find(PrefixSearch* search) {
  std::vector<StateColumn> columns(search->columns, search->columns + search->column_count);
  std::uint64_t* names = search->names;
  search->hits = search->known = search->computed = 0;
  for (std::int64_t at = 0; at < search->histories; ++at) {
    const std::int64_t positions = search->positions[at], count = positions / kBlockPositions;
    name_blocks(*search, columns, search->firsts[at], count, names);
    // A result is computed of the last position, at least.
    const std::int64_t kept = kept_blocks(*search, names, (positions - 1) / kBlockPositions);
    search->blocks[at] = {search->table, search->owner,        names,
                          kept,          Keeping::kWorthwhile, search->is_bfloat};
    const std::int64_t known = kept * kBlockPositions;
    search->behind[at] = search->firsts[at] + known;
    search->behind[search->histories + at] = positions - known;
    search->hits += kept > 0;
    search->known += known;
    search->computed += positions - known;
    names += count * kNameWords;
    for (StateColumn& column : columns) column.values += *column.lengths++;
  }
}

std::int64_t sharded_infer_states_read(void* table, const std::uint64_t* name, void* out,
                                       std::int64_t room) {
  LockedShard shard(table, name);
  if (!shard) return 0;
  Entry* entry = shard.find(name);
  if (!entry) return 0;
  entry->used = shard.now(1);
  Cursor cursor(shard, *entry);
  cursor.each(entry->bytes < room ? entry->bytes : room,
              [&](const std::uint8_t* state, std::int64_t done, std::int64_t count) {
                std::memcpy(static_cast<std::uint8_t*>(out) + done, state, count);
              });
  return entry->bytes;
}

void sharded_infer_states_write(void* table, StateOwner* owner, const std::uint64_t* name,
                                const void* state, std::int64_t bytes, double seconds,
                                std::int32_t is_always) {
  LockedShard shard(table, name);
  if (!shard || shard.find(name)) return;
  const Entry* entry = shard.add(owner, name, bytes, seconds, shard.now(1), is_always != 0);
  if (!entry) return;
  Cursor cursor(shard, *entry);
  cursor.each(bytes, [&](std::uint8_t* to, std::int64_t done, std::int64_t count) {
    std::memcpy(to, static_cast<const std::uint8_t*>(state) + done, count);
  });
}

void sharded_infer_states_count(void* table, const StateOwner* owner, StateCounts* out) {
  *out = {};
  const std::int64_t shards = static_cast<const Header*>(table)->shards;
  for (std::int64_t number = 0; number < shards; ++number) {
    const LockedShard shard(table, number);
    if (!shard) continue;
    shard.each([&](const Entry& entry) {
      if (entry.owner == owner->name[0]) out->states += 1, out->bytes += entry.bytes;
    });
  }
}
}
