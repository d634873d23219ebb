// SPDX-License-Identifier: Apache-2.0
#include <specagg/backend/cpu/gguf.hpp>

#include <fstream>

#include "backend/cpu/gguf_writer.hpp"
#include "support/catch.hpp"

using namespace specagg::cpu;
using test::gguf_bytes;
using test::gguf_writer;
using test::raw;
using test::raw_string;

namespace {

std::string failure(std::string_view bytes) {
  return test::error_of([&] { gguf_bytes(bytes).open(); });
}
std::string failure(const gguf_writer& file) { return failure(file.bytes()); }

// One line that names the file and says `reason`.
void refuses(const std::string& message, const std::string& reason) {
  INFO(message);
  CHECK(message.rfind("test.gguf: ", 0) == 0);
  CHECK(message.find(reason) != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

gguf_writer every_type() {
  gguf_writer file;
  file.value("u8", value_type::u8, raw(std::uint8_t{200}));
  file.value("i8", value_type::i8, raw(std::int8_t{-2}));
  file.value("u16", value_type::u16, raw(std::uint16_t{60000}));
  file.value("i16", value_type::i16, raw(std::int16_t{30000}));
  file.integer("u32", 4000000000u);
  file.value("i32", value_type::i32, raw(std::int32_t{7}));
  file.value("u64", value_type::u64, raw(std::uint64_t{1} << 40));
  file.value("i64", value_type::i64, raw(std::int64_t{1} << 41));
  file.real("f32", 0.5f);
  file.value("f64", value_type::f64, raw(0.1));
  file.flag("yes", true);
  file.flag("no", false);
  file.string("text", "two\nlines");
  file.strings("texts", {"a", "", "ccc"});
  file.numbers<float>("floats", {1, 2, 3});
  file.numbers<std::int32_t>("ints", {});
  for (auto type : {tensor_type::f32, tensor_type::f16, tensor_type::bf16, tensor_type::q4_0,
                    tensor_type::q4_1, tensor_type::q8_0})
    file.tensor(joined("t", static_cast<int>(type)), {32, 3}, static_cast<std::uint32_t>(type),
                test::encode(std::vector<int>(96, 1), type));
  file.tensor("cube", {2, 3, 4, 5}, 0, std::string(480, '\0'));
  return file;
}

}  // namespace

TEST_CASE("a GGUF file reads back as it was written: every metadata type, every tensor type") {
  for (std::uint32_t version : {2u, 3u}) {
    auto written = every_type();
    written.version = version;
    const gguf_bytes bytes(written.bytes());
    const auto file = bytes.open();
    CHECK(file.integer("u8") == 200);
    CHECK(file.integer("u16") == 60000);
    CHECK(file.integer("i16") == 30000);
    CHECK(file.integer("u32") == 4000000000u);
    CHECK(file.integer("i32") == 7);
    CHECK(file.integer("u64") == std::uint64_t{1} << 40);
    CHECK(file.integer("i64") == std::uint64_t{1} << 41);
    CHECK(file.integer("absent", 5) == 5);
    CHECK(file.real("f32") == 0.5);
    CHECK(file.real("f64") == 0.1);
    CHECK(file.flag("yes"));
    CHECK_FALSE(file.flag("no"));
    CHECK(file.string("text") == "two\nlines");
    CHECK(file.strings("texts") == std::vector<std::string_view>{"a", "", "ccc"});
    CHECK(file.numbers<float>("floats") == std::vector<float>{1, 2, 3});
    CHECK(file.numbers<std::int32_t>("ints").empty());
    CHECK(file.tensors().size() == 7);
    for (auto type : {tensor_type::f32, tensor_type::f16, tensor_type::bf16, tensor_type::q4_0,
                      tensor_type::q4_1, tensor_type::q8_0}) {
      const auto* t = file.find_tensor(joined("t", static_cast<int>(type)));
      REQUIRE(t);
      CHECK((t->type == type && t->rows == 3 && t->cols == 32 && t->rank == 2));
      const auto expected = test::encode(std::vector<int>(96, 1), type);
      CHECK(std::memcmp(t->data, expected.data(), expected.size()) == 0);
      CHECK(reinterpret_cast<std::uintptr_t>(t->data) % 8 == 0);
    }
    const auto* cube = file.find_tensor("cube");
    REQUIRE(cube);
    CHECK((cube->rows == 60 && cube->cols == 2 && cube->outer == 20));
    CHECK_FALSE(file.find_tensor("sphere"));
  }
}

TEST_CASE(
    "metadata of another type, absent or negative is an error that names the key and both types") {
  const gguf_bytes bytes(every_type().bytes());
  const auto file = bytes.open();
  refuses(test::error_of([&] { file.integer("text"); }),
          "metadata text: is string (an integer is needed)");
  refuses(test::error_of([&] { file.integer("floats"); }),
          "metadata floats: is an array of float32 (an integer is needed)");
  refuses(test::error_of([&] { file.integer("i8"); }), "metadata i8: is negative");
  refuses(test::error_of([&] { file.integer("absent"); }),
          "metadata absent: is missing (an integer is needed)");
  refuses(test::error_of([&] { file.real("u8"); }), "is uint8 (a float is needed)");
  refuses(test::error_of([&] { file.flag("u8"); }), "is uint8 (a boolean is needed)");
  refuses(test::error_of([&] { file.string("texts"); }),
          "is an array of string (a string is needed)");
  refuses(test::error_of([&] { file.strings("floats"); }), "(an array of string is needed)");
  refuses(test::error_of([&] { file.numbers<float>("ints"); }),
          "is an array of int32 (an array of float32 is needed)");
}

TEST_CASE("a file that is no GGUF file, or of a kind that is not supported, is refused by name") {
  refuses(failure(""), "not a GGUF file");
  refuses(failure("GGU"), "not a GGUF file");
  refuses(failure("GGML and more text to read"), "not a GGUF file");
  refuses(failure("GGUF"), ": byte 4: truncated: the version takes 4 bytes, 0 are left");
  gguf_writer file;
  file.version = 1;
  refuses(failure(file), "GGUF version 1 is not supported (2 and 3 are)");
  file.version = 0x03000000;
  refuses(failure(file), "big-endian GGUF is not supported");
}

TEST_CASE("counts beyond what the file can hold are refused before anything is allocated") {
  gguf_writer file;
  file.values = std::uint64_t{1} << 60;
  refuses(failure(file), "header: promises 1152921504606846976 metadata entries");
  file = {};
  file.tensors = ~std::uint64_t{0};
  refuses(failure(file), "and 18446744073709551615 tensors, more than");
  for (auto type : {value_type::u8, value_type::f32, value_type::string})
    for (std::uint64_t count : {std::uint64_t{1000}, ~std::uint64_t{0}, std::uint64_t{1} << 61}) {
      file = {};
      file.array("big", type, count, std::string(40, '\0'));
      refuses(failure(file), "truncated: ");
    }
  file = {};
  file.array("floats", value_type::f32, 11, std::string(40, '\0'));
  refuses(failure(file), "metadata floats promises 11 elements of 4 bytes, 40 bytes are left");
  file = {};
  file.value("long", value_type::string, raw(~std::uint64_t{0}) + "abc");
  refuses(failure(file), "a metadata string takes 18446744073709551615 bytes, 3 are left");
  file = {};
  file.metadata = raw(std::uint64_t{1} << 63) + "key and more bytes";
  file.values = 1;
  refuses(failure(file), "a metadata key takes 9223372036854775808 bytes");
}

TEST_CASE("metadata that mean nothing are refused") {
  gguf_writer file;
  file.value("odd", static_cast<value_type>(13), "");
  refuses(failure(file), ": byte 39: unknown metadata type 13 (0 to 12 are known)");
  file = {};
  file.array("nested", value_type::array, 1, std::string(12, '\0'));
  refuses(failure(file), "metadata nested: arrays of arrays are not supported");
  file = {};
  file.integer("", 1);
  refuses(failure(file), "a metadata key is empty");
  file = {};
  file.integer("same\nkey", 1);
  file.real("same\nkey", 1);
  refuses(failure(file), "metadata same\\nkey: occurs twice");
  for (std::uint32_t alignment : {0u, 1u, 24u, 131072u}) {
    file = {};
    file.integer("general.alignment", alignment);
    refuses(failure(file),
            joined("metadata general.alignment: ", alignment, " is not a power of two from 8"));
  }
  file = {};
  file.string("general.alignment", "32");
  refuses(failure(file), "metadata general.alignment: is string (an integer is needed)");
}

TEST_CASE("tensors of another type, shape, place or twice are refused by name") {
  const auto with = [](const std::vector<std::uint64_t>& shape, std::uint32_t type,
                       std::uint64_t offset) {
    gguf_writer file;
    file.tensor_at("w", shape, type, offset);
    file.data = std::string(64, '\0');
    return failure(file);
  };
  CHECK(with({4, 4}, 0, 0) == "");
  refuses(with({32}, 12, 0),
          "tensor w: type Q4_K is not supported (F32, F16, BF16, Q4_0, Q4_1 and Q8_0 are)");
  refuses(with({32}, 31337, 0), "tensor w: type 31337 is not supported");
  refuses(with({16}, 2, 0), "tensor w: Q4_0 rows of 16 elements (a multiple of 32 is needed)");
  refuses(with({48}, 3, 0), "tensor w: Q4_1 rows of 48 elements (a multiple of 32 is needed)");
  refuses(with({16}, 8, 0), "tensor w: Q8_0 rows of 16 elements (a multiple of 32 is needed)");
  refuses(with({}, 0, 0), "tensor w: has 0 dimensions (1 to 4 are possible)");
  refuses(with({1, 1, 1, 1, 1}, 0, 0), "tensor w: has 5 dimensions");
  refuses(with({4, 0}, 0, 0), "tensor w: dimension 1 is 0");
  refuses(with({4, 5}, 0, 0),
          "tensor w: takes 80 bytes at offset 0, the file has 64 bytes of tensor data");
  refuses(with({4, 4}, 0, 32), "tensor w: takes 64 bytes at offset 32, the file has 64");
  refuses(with({4}, 0, 1 << 20), "tensor w: takes 16 bytes at offset 1048576");
  refuses(with({16}, 0, ~std::uint64_t{31}),
          "tensor w: takes 64 bytes at offset 18446744073709551584");
  refuses(with({4}, 0, 8), "tensor w: offset 8 is not a multiple of the alignment 32");
  refuses(with({std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, 0),
          "dimension 1 is 4294967296: the size overflows");
  refuses(with({std::uint64_t{1} << 63}, 1, 0),
          "dimension 0 is 9223372036854775808: the size overflows");
  refuses(with({std::uint64_t{1} << 60}, 0, 0), "tensor w: takes 4611686018427387904 bytes");
  gguf_writer file;
  for (int i = 0; i < 2; ++i) file.tensor("twin", {4}, 0, std::string(16, '\0'));
  refuses(failure(file), "tensor twin: occurs twice");
  file = {};
  file.tensor_at("w", {4}, 0, 0);
  auto bytes = file.bytes();
  bytes.resize(bytes.size() - bytes.size() % 32 / 2 - 1);
  refuses(failure(bytes), "t");  // cut inside the padding or the table: either way an error
}

TEST_CASE("tensors that share a byte are refused, in any order of the file. Neighbours are not") {
  const auto with = [](std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    gguf_writer file;
    file.tensor_at("a", {32, 2}, 8, a);  // 68 bytes
    file.tensor_at("b", {8}, 0, b);      // 32 bytes
    file.tensor_at("c", {1}, 1, c);      // 2 bytes
    file.data = std::string(256, '\0');
    return failure(file);
  };
  CHECK(with(0, 96, 128) == "");
  CHECK(with(160, 0, 32) == "");
  refuses(with(0, 0, 128), "overlaps tensor");
  refuses(with(0, 64, 128), "tensor b: overlaps tensor a");
  refuses(with(64, 32, 128), "tensor c: overlaps tensor a");
  refuses(with(128, 0, 0), "overlaps tensor");
  refuses(with(32, 160, 96), "tensor c: overlaps tensor a");
}

TEST_CASE("bytes that do not start at a multiple of 8 are refused") {
  alignas(8) std::byte bytes[32] = {};
  refuses(test::error_of([&] { (void)gguf_file::view({bytes + 4, 28}, "test.gguf"); }),
          "do not start at a multiple of 8");
}

TEST_CASE("a GGUF file cut off anywhere is refused") {
  const auto whole = test::small_model{}.write().bytes();
  REQUIRE(failure(whole) == "");
  const auto last = every_type().bytes();
  for (std::size_t size = 0; size < last.size(); ++size) {
    const auto message = failure(std::string_view(last).substr(0, size));
    if (message.rfind("test.gguf: ", 0) != 0) FAIL("cut to " << size << ": " << message);
  }
}

TEST_CASE("a GGUF file with any one bit flipped is refused or reads as another file") {
  auto bytes = every_type().bytes();
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto flip = static_cast<char>(1 << bit % 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
    const auto message = test::error_of([&] {
      const gguf_bytes kept(bytes);
      const auto file = kept.open();
      for (const auto& t : file.tensors()) {  // the last byte is there
        const auto* end = t.data + t.rows * row_bytes(t.type, t.cols);
        volatile auto touched = end[-1];
        (void)touched;
      }
      for (const auto& v : file.values())
        if (v.is_array && v.type == value_type::string) file.strings(v.key);
    });
    refused += !message.empty();
    if (message.find('\n') != std::string::npos) FAIL(message);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
  }
  CHECK(refused > bytes.size());  // more than an eighth of the bits matter to the structure
}

TEST_CASE("files that cannot be opened say why") {
  const auto failure_of = [](const std::string& path) {
    return test::error_of([&] { (void)gguf_file::open(path); });
  };
  CHECK(failure_of("/no/such/file.gguf") == "/no/such/file.gguf: No such file or directory");
  CHECK(failure_of("/") == "/: not a regular file");
  const std::string path = "empty.test.gguf";
  std::ofstream(path).close();
  CHECK(failure_of(path) == path + ": the file is empty");
  std::remove(path.c_str());
}

TEST_CASE("copies of an opened file share the mapping and outlive it") {
  std::optional<gguf_file> first = gguf_file::open(SPECAGG_MODELS "/draft.gguf");
  const auto copy = *first;
  const auto* data = copy.find_tensor("token_embd.weight")->data;
  CHECK(data == first->find_tensor("token_embd.weight")->data);
  first.reset();
  CHECK(copy.string("general.architecture") == "llama");
  CHECK(copy.find_tensor("token_embd.weight")->rows == 4096);
}
