// SPDX-License-Identifier: Apache-2.0
// Reads GGUF model files (versions 2 and 3, little-endian). The file is memory-mapped: tensors and
// strings stay in it.
//
// The file is not trusted. Every count, length, dimension, offset and type is compared with the
// size of the file before it is used, and no byte belongs to two tensors. So what is allocated,
// here and for each tensor, grows with the bytes of the file, never with a count in it. A bad file
// throws specagg::error: one line with the file, the place and the reason. (If another process
// shortens the file while it is mapped, the system raises SIGBUS, as for every mapping.)
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <specagg/backend/cpu/tensor.hpp>
#include <specagg/error.hpp>

SPECAGG_BEGIN
namespace cpu {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read where they lie");

// The types of metadata values, with the numbers of the file format.
enum class value_type : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

// One entry of the metadata, in the file's memory: it is valid as long as the file.
struct value {
  std::string_view key;
  value_type type{};  // of the elements, for an array
  bool is_array = false;
  std::size_t count = 1;  // elements
  // the elements in the file, not aligned; strings: u64 length, then bytes
  const std::byte* data = nullptr;
};

// Joins its arguments into one string. (For `"literal" + std::string` g++ 12 warns about overlaps
// that do not exist.)
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::string all;
  const auto append = [&](const auto& part) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(part)>>)
      all += std::to_string(part);
    else all += part;
  };
  (append(parts), ...);
  return all;
}

namespace detail {

constexpr const char* value_type_name(value_type type) {
  constexpr const char* names[] = {"uint8",  "int8",    "uint16",  "int16",  "uint32",
                                   "int32",  "float32", "boolean", "string", "array",
                                   "uint64", "int64",   "float64"};
  return names[std::uint32_t(type)];
}

// The size of one element in bytes; 0 for strings and arrays, which have no fixed size.
constexpr std::size_t value_size(value_type type) {
  constexpr std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[std::uint32_t(type)];
}

}  // namespace detail

// An open file. Copies share the mapping, which exists as long as one of them.
class gguf_file {
 public:
  // Maps the file. Throws specagg::error: it cannot be read, or is not a GGUF file of this kind. It
  // must not be changed while it is open.
  [[nodiscard]] static gguf_file open(const std::string& path) {
    const auto fail = [&](const std::string& reason) { throw error(path, "", reason); };
    // O_NONBLOCK: opening a pipe by mistake must not block.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail(std::strerror(errno));
    const std::shared_ptr<void> closer(nullptr, [descriptor](void*) { ::close(descriptor); });
    struct stat info{};
    if (::fstat(descriptor, &info) != 0) fail(std::strerror(errno));
    if (!S_ISREG(info.st_mode)) fail("not a regular file");
    if (info.st_size == 0) fail("the file is empty");
    const auto size = as_size(info.st_size);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) fail(std::strerror(errno));
    std::shared_ptr<const void> mapping(address, [size](void* at) { ::munmap(at, size); });
    ::madvise(address, size, MADV_WILLNEED);
    return gguf_file(path, {static_cast<const std::byte*>(address), size}, std::move(mapping));
  }

  // Reads a file in memory. The bytes must outlive this object and everything made from it.
  [[nodiscard]] static gguf_file view(std::span<const std::byte> bytes, std::string name) {
    return gguf_file(std::move(name), bytes, nullptr);
  }

  const std::string& name() const { return name_; }
  std::size_t size() const { return bytes_.size(); }
  // Sorted by their names.
  const std::vector<tensor>& tensors() const { return tensors_; }
  const std::vector<value>& values() const { return values_; }

  // By its name; null if the file does not have it.
  [[nodiscard]] const value* find(std::string_view key) const {
    return find_sorted(values_, key, [](const value& v) { return v.key; });
  }
  [[nodiscard]] const tensor* find_tensor(std::string_view name) const {
    return find_sorted(tensors_, name, [](const tensor& t) { return t.name; });
  }

  // The memory that holds a tensor's pages of the mapped file may be used for something else.
  // Whoever reads the tensor again waits for the file again.
  void give_back(const tensor& t) const {
    if (!mapping_) return;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto from = reinterpret_cast<std::uintptr_t>(t.data), to = from + bytes_of(t);
    const auto first = (from + page - 1) / page * page, last = to / page * page;
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

  // Typed metadata. If the key is absent, the result is `otherwise`, or an error without one. A
  // value of another type is an error.
  std::uint64_t integer(std::string_view key, std::optional<std::uint64_t> otherwise = {}) const {
    const auto* v = find(key);
    if (!v && otherwise) return *otherwise;
    const auto signed_value = [&](std::int64_t i) {
      if (i < 0) fail(key, "is negative");
      return std::uint64_t(i);
    };
    if (v && !v->is_array) switch (v->type) {
        case value_type::u8: return read_unaligned<std::uint8_t>(v->data);
        case value_type::u16: return read_unaligned<std::uint16_t>(v->data);
        case value_type::u32: return read_unaligned<std::uint32_t>(v->data);
        case value_type::u64: return read_unaligned<std::uint64_t>(v->data);
        case value_type::i8: return signed_value(read_unaligned<std::int8_t>(v->data));
        case value_type::i16: return signed_value(read_unaligned<std::int16_t>(v->data));
        case value_type::i32: return signed_value(read_unaligned<std::int32_t>(v->data));
        case value_type::i64: return signed_value(read_unaligned<std::int64_t>(v->data));
        default: break;
      }
    wrong_type(key, v, "an integer");
  }
  // f32 or f64.
  double real(std::string_view key, std::optional<double> otherwise = {}) const {
    const auto* v = find(key);
    if (!v && otherwise) return *otherwise;
    if (v && !v->is_array && v->type == value_type::f32)
      return double(read_unaligned<float>(v->data));
    if (v && !v->is_array && v->type == value_type::f64) return read_unaligned<double>(v->data);
    wrong_type(key, v, "a float");
  }
  // A boolean.
  bool flag(std::string_view key, std::optional<bool> otherwise = {}) const {
    const auto* v = find(key);
    if (!v && otherwise) return *otherwise;
    if (!v || v->is_array || v->type != value_type::boolean) wrong_type(key, v, "a boolean");
    return *v->data != std::byte{0};
  }
  // The text is in the file's memory.
  std::string_view string(std::string_view key,
                          std::optional<std::string_view> otherwise = {}) const {
    const auto* v = find(key);
    if (!v && otherwise) return *otherwise;
    if (!v || v->is_array || v->type != value_type::string) wrong_type(key, v, "a string");
    return {reinterpret_cast<const char*>(v->data + 8),
            as_size(read_unaligned<std::uint64_t>(v->data))};
  }
  // Arrays of strings, and arrays of numbers of exactly type T. They are copied, because they are
  // not aligned in the file.
  std::vector<std::string_view> strings(std::string_view key) const {
    const auto& v = array(key, value_type::string);
    std::vector<std::string_view> out;
    const auto* at = v.data;
    for (std::size_t i = 0; i < v.count; ++i) {
      const auto size = as_size(read_unaligned<std::uint64_t>(at));
      out.emplace_back(reinterpret_cast<const char*>(at + 8), size);
      at += 8 + size;
    }
    return out;
  }
  // T: float or std::int32_t.
  template <class T>
  std::vector<T> numbers(std::string_view key) const {
    constexpr auto type = std::is_same_v<T, float> ? value_type::f32 : value_type::i32;
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::int32_t>);
    const auto& v = array(key, type);
    std::vector<T> out(v.count);  // the file has these elements: open() checked
    if (v.count != 0) std::memcpy(out.data(), v.data, v.count * sizeof(T));
    return out;
  }

  // Throws specagg::error with the name of the file and of the metadata.
  [[noreturn]] void fail(std::string_view key, const std::string& reason) const {
    throw error(name_, joined("metadata ", printable(key)), reason);
  }

 private:
  // Converts a number of the file that was checked to fit in memory (on some platforms the two
  // types are the same).
  static constexpr std::size_t as_size(auto n) { return std::size_t(n); }

  template <class T>
  static T read_unaligned(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  // Reads through the file. Everything that it returns lies inside the file.
  struct cursor {
    const std::string& input;
    std::span<const std::byte> bytes;
    std::size_t at = 0;

    [[noreturn]] void fail(const std::string& reason) const {
      throw error(input, joined("byte ", at), reason);
    }
    const std::byte* take(std::uint64_t size, const char* what) {
      if (size > bytes.size() - at)
        fail(joined("truncated: ", what, " takes ", size, " bytes, ", bytes.size() - at,
                    " are left"));
      const auto* from = bytes.data() + at;
      at += as_size(size);
      return from;
    }
    template <class T>
    T number(const char* what) {
      return read_unaligned<T>(take(sizeof(T), what));
    }
    std::string_view string(const char* what) {
      const auto size = number<std::uint64_t>(what);
      const auto* from = take(size, what);
      return {reinterpret_cast<const char*>(from), as_size(size)};
    }
    value_type type() {
      const auto type = number<std::uint32_t>("a value's type");
      if (type > std::uint32_t(value_type::f64))
        fail(joined("unknown metadata type ", type, " (0 to 12 are known)"));
      return static_cast<value_type>(type);
    }
  };

  // Sorts the items by name, and throws if a name occurs twice.
  template <class Item, class Name>
  static void refuse_duplicates(const std::string& input, std::vector<Item>& items,
                                const char* what, Name name) {
    std::sort(items.begin(), items.end(),
              [&](const Item& a, const Item& b) { return name(a) < name(b); });
    const auto twin =
        std::adjacent_find(items.begin(), items.end(),
                           [&](const Item& a, const Item& b) { return name(a) == name(b); });
    if (twin != items.end())
      throw error(input, joined(what, " ", printable(name(*twin))), "occurs twice");
  }

  template <class Item, class Name>
  static const Item* find_sorted(const std::vector<Item>& items, std::string_view wanted,
                                 Name name) {
    const auto it =
        std::lower_bound(items.begin(), items.end(), wanted,
                         [&](const Item& item, std::string_view key) { return name(item) < key; });
    return it != items.end() && name(*it) == wanted ? &*it : nullptr;
  }

  gguf_file(std::string name, std::span<const std::byte> bytes, std::shared_ptr<const void> mapping)
      : name_(std::move(name)), bytes_(bytes), mapping_(std::move(mapping)) {
    if (reinterpret_cast<std::uintptr_t>(bytes_.data()) % 8 != 0)
      throw error(name_, "", "the bytes do not start at a multiple of 8");
    cursor in{name_, bytes_};
    if (bytes_.size() < 4 || std::memcmp(in.take(4, "the magic"), "GGUF", 4) != 0)
      throw error(name_, "", "not a GGUF file");
    const auto version = in.number<std::uint32_t>("the version");
    if (version == 0x02000000u || version == 0x03000000u)
      throw error(name_, "header", "big-endian GGUF is not supported (little-endian is)");
    if (version != 2 && version != 3)
      throw error(name_, "header",
                  joined("GGUF version ", version, " is not supported (2 and 3 are)"));
    const auto tensor_count = in.number<std::uint64_t>("the tensor count");
    const auto value_count = in.number<std::uint64_t>("the metadata count");
    // The shortest possible entry of each table. (The loops below would also stop at the end of the
    // file, but later.)
    if (value_count > bytes_.size() / 13 || tensor_count > bytes_.size() / 32)
      throw error(name_, "header",
                  joined("promises ", value_count, " metadata entries and ", tensor_count,
                         " tensors, more than ", bytes_.size(), " bytes can hold"));
    for (std::uint64_t i = 0; i < value_count; ++i) values_.push_back(read_value(in));
    refuse_duplicates(name_, values_, "metadata", [](const value& v) { return v.key; });

    const auto alignment = integer("general.alignment", 32);
    if (alignment < 8 || alignment > 65536 || !std::has_single_bit(alignment))
      fail("general.alignment", joined(alignment, " is not a power of two from 8 to 65536"));
    for (std::uint64_t i = 0; i < tensor_count; ++i) tensors_.push_back(read_tensor(in));
    const auto padding = (0 - in.at) & as_size(alignment - 1);
    if (padding > bytes_.size() - in.at && tensor_count != 0)
      throw error(name_, "tensor data", "truncated: the file ends before it");
    const auto start = in.at + padding;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      place(tensors_[i], offsets_[i], start, alignment);
    offsets_ = {};
    refuse_overlaps();
    refuse_duplicates(name_, tensors_, "tensor", [](const tensor& t) { return t.name; });
  }

  static value read_value(cursor& in) {
    value v;
    v.key = in.string("a metadata key");
    if (v.key.empty()) in.fail("a metadata key is empty");
    v.type = in.type();
    std::uint64_t count = 1;
    if (v.type == value_type::array) {
      v.is_array = true;
      v.type = in.type();
      if (v.type == value_type::array)
        in.fail(joined("metadata ", printable(v.key), ": arrays of arrays are not supported"));
      count = in.number<std::uint64_t>("an array's length");
      // This check comes before any multiplication: an element takes at least one byte.
      if (count > in.bytes.size() - in.at)
        in.fail(joined("truncated: metadata ", printable(v.key), " promises ", count, " elements, ",
                       in.bytes.size() - in.at, " bytes are left"));
    }
    v.data = in.bytes.data() + in.at;
    v.count = as_size(count);
    if (v.type == value_type::string) {
      for (std::size_t i = 0; i < v.count; ++i) in.string("a metadata string");
    } else {
      // count <= file size < 2^63, and an element has at most 8 bytes. Division cannot overflow,
      // multiplication could.
      const auto size = detail::value_size(v.type);
      if (v.count > (in.bytes.size() - in.at) / size)
        in.fail(joined("truncated: metadata ", printable(v.key), " promises ", v.count,
                       " elements of ", size, " bytes, ", in.bytes.size() - in.at,
                       " bytes are left"));
      in.take(v.count * size, "a metadata value");
    }
    return v;
  }

  tensor read_tensor(cursor& in) {
    tensor t;
    t.name = in.string("a tensor's name");
    const auto bad = [&](const std::string& reason) {
      throw error(name_, joined("tensor ", printable(t.name)), reason);
    };
    t.rank = in.number<std::uint32_t>("a tensor's rank");
    if (t.rank < 1 || t.rank > 4) bad(joined("has ", t.rank, " dimensions (1 to 4 are possible)"));
    std::array<std::uint64_t, 4> shape = {1, 1, 1, 1};
    std::uint64_t elements = 1;
    for (unsigned d = 0; d < t.rank; ++d) {
      shape[d] = in.number<std::uint64_t>("a tensor's dimension");
      if (shape[d] == 0) bad(joined("dimension ", d, " is 0"));
      // so that bytes and strides fit too
      if (shape[d] > std::numeric_limits<std::int64_t>::max() / elements / 4)
        bad(joined("dimension ", d, " is ", shape[d], ": the size overflows"));
      elements *= shape[d];
    }
    const auto type = in.number<std::uint32_t>("a tensor's type");
    const auto type_name = detail::tensor_type_name(type);
    t.type = static_cast<tensor_type>(type);
    if (t.type != tensor_type::f32 && t.type != tensor_type::f16 && t.type != tensor_type::bf16 &&
        block_bytes(t.type) == 0)
      bad(joined("type ", type_name,
                 " is not supported (F32, F16, BF16, Q4_0, Q4_1 and Q8_0 are)"));
    if (block_bytes(t.type) > 0 && shape[0] % quantised_block != 0)
      bad(joined(type_name, " rows of ", shape[0], " elements (a multiple of 32 is needed)"));
    t.cols = as_size(shape[0]);
    t.rows = as_size(shape[1] * shape[2] * shape[3]);
    t.outer = as_size(shape[2] * shape[3]);
    offsets_.push_back(in.number<std::uint64_t>("a tensor's offset"));
    return t;
  }

  void place(tensor& t, std::uint64_t offset, std::size_t start, std::uint64_t alignment) const {
    const auto bad = [&](const std::string& reason) {
      throw error(name_, joined("tensor ", printable(t.name)), reason);
    };
    if (offset % alignment != 0)
      bad(joined("offset ", offset, " is not a multiple of the alignment ", alignment));
    const auto bytes = bytes_of(t);  // fits: at most 4 bytes for each of 2^61 elements
    const auto left = bytes_.size() - start;
    if (offset > left || bytes > left - offset)
      bad(joined("takes ", bytes, " bytes at offset ", offset, ", the file has ", left,
                 " bytes of tensor data"));
    t.data = bytes_.data() + start + offset;
  }

  void refuse_overlaps() {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const tensor& a, const tensor& b) { return a.data < b.data; });
    for (std::size_t i = 1; i < tensors_.size(); ++i)
      if (const auto& before = tensors_[i - 1]; before.data + bytes_of(before) > tensors_[i].data)
        throw error(name_, joined("tensor ", printable(tensors_[i].name)),
                    joined("overlaps tensor ", printable(before.name)));
  }

  [[noreturn]] void wrong_type(std::string_view key, const value* v, const char* wanted) const {
    if (!v) fail(key, joined("is missing (", wanted, " is needed)"));
    fail(key, joined("is ", v->is_array ? "an array of " : "", detail::value_type_name(v->type),
                     " (", wanted, " is needed)"));
  }
  const value& array(std::string_view key, value_type type) const {
    const auto* v = find(key);
    if (!v || !v->is_array || v->type != type)
      wrong_type(key, v, joined("an array of ", detail::value_type_name(type)).c_str());
    return *v;
  }

  std::string name_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> mapping_;  // null for a view
  std::vector<value> values_;            // sorted by key
  std::vector<tensor> tensors_;          // sorted by name
  // offsets of the tensors as read, until their data pointers are set
  std::vector<std::uint64_t> offsets_;
};

}  // namespace cpu
SPECAGG_END
