// SPDX-License-Identifier: Apache-2.0
#include "passages.hpp"

#include <specagg/error.hpp>

#ifdef SPECAGG_XAPIAN
#include <stdlib.h>
#include <xapian.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string_view>

#include <specagg/format.hpp>

#include "terminal.hpp"
#endif

namespace cli {

using specagg::error;

#ifndef SPECAGG_XAPIAN

struct passages::index {};
passages::passages(const std::string& folder, const encoder&, const speller&) {
  throw error("documents in " + folder, "",
              "this build has no search (CMake found no Xapian: install libxapian-dev)");
}
passages::~passages() = default;
std::size_t passages::size() const { return 0; }
std::vector<specagg::token_id> passages::tokens(std::uint32_t) const { return {}; }
std::vector<std::uint32_t> passages::find(const std::string&, std::size_t) const { return {}; }
std::vector<double> passages::scores(const std::string&, std::span<const std::uint32_t> ids) const {
  return std::vector<double>(ids.size());
}

#else

namespace {

namespace fs = std::filesystem;
using specagg::token_id;

// Throws what Xapian threw as an error of `input`.
template <class Body>
auto indexed(const std::string& input, Body&& body) {
  try {
    return body();
  } catch (const Xapian::Error& e) {
    throw error(input, "index", e.get_description());
  }
}

std::vector<fs::path> files_of(const std::string& folder) {
  std::vector<fs::path> files;
  try {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const auto kind = entry.path().extension();
      if ((kind == ".txt" || kind == ".md") && !entry.is_directory()) files.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& e) {
    throw error(e.path1().empty() ? folder : e.path1().string(), "", e.code().message());
  }
  if (files.empty()) throw error(folder, "", "holds no *.txt or *.md file");
  std::sort(files.begin(), files.end());
  return files;
}

// The first byte that is not of a well-formed UTF-8 character; npos: none.
std::size_t malformed(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto c = specagg::utf8::first_code_point(text.substr(i));
    if (!c.valid) return i;
    i += c.bytes;
  }
  return std::string_view::npos;
}

std::string text_of(const fs::path& path) {
  std::error_code ignored;
  std::ifstream file;
  if (fs::is_regular_file(path, ignored)) file.open(path, std::ios::binary);
  std::string text;
  if (file.is_open()) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) throw error(path.string(), "", "cannot be read");
  if (const auto at = malformed(text); at != std::string::npos)
    throw error(path.string(), fmt::format("byte {}", at), "is not UTF-8");
  return text;
}

// The bytes of a long text that are encoded together: a MiB, up to the end of a line if there is
// one.
std::size_t slice(std::string_view text) {
  constexpr std::size_t most = std::size_t{1} << 20;
  if (text.size() <= most) return text.size();
  const auto head = text.substr(0, most);
  const auto line = head.rfind('\n');
  return line != std::string_view::npos ? line + 1 : most - unfinished(head);
}

// The words of a text as Xapian makes them, in lower case, each with its count. Not their stems:
// those would be of one language, and changed the likelihoods that site_options::scale tells about
// by less than 0.0005.
Xapian::Document words_of(const std::string& text) {
  Xapian::TermGenerator generator;
  generator.index_text_without_positions(text);
  return generator.get_document();
}
Xapian::Query query_of(const std::string& text) {
  const auto words = words_of(text);
  std::vector<Xapian::Query> all;
  for (auto word = words.termlist_begin(); word != words.termlist_end(); ++word)
    all.emplace_back(*word, word.get_wdf());
  return {Xapian::Query::OP_OR, all.begin(), all.end()};
}
// words are in lower case
std::string name_of(Xapian::docid id) { return "Q" + std::to_string(id); }

// A folder of its own under the system's for temporary files.
struct temporary_folder {
  std::string path = (fs::temp_directory_path() / "specagg-XXXXXX").string();
  temporary_folder() {
    if (!mkdtemp(path.data()))
      throw error(path, "", "cannot be made: " + std::string(strerror(errno)));
  }
  ~temporary_folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

}  // namespace

// The database lies on disk, in files without a name that go with the process: some twice the text.
// 16 MB of text take 12 s, most of it for the tokenizer, and 70 MB of memory at most.
struct passages::index {
  std::string folder;
  Xapian::Database database;
  mutable std::mutex turn;

  Xapian::MSet search(const Xapian::Query& query, std::size_t n) const {
    Xapian::Enquire enquire(database);
    enquire.set_weighting_scheme(Xapian::BM25Weight());
    enquire.set_docid_order(Xapian::Enquire::ASCENDING);
    enquire.set_query(query);
    return enquire.get_mset(0, Xapian::doccount(n));
  }
};

passages::passages(const std::string& folder, const encoder& encode, const speller& piece)
    : index_(std::make_unique<index>()) {
  index_->folder = folder;
  const auto files = files_of(folder);
  const temporary_folder place;
  indexed(folder, [&] {
    Xapian::WritableDatabase database(
        place.path, Xapian::DB_CREATE | Xapian::DB_NO_SYNC | Xapian::DB_BACKEND_GLASS);
    for (const auto& path : files) {
      const std::string text = text_of(path);
      std::vector<token_id> pieces;  // not yet in a passage
      for (std::size_t from = 0; from < text.size();) {
        const auto part = std::string_view(text).substr(from);
        const auto size = slice(part);
        for (const token_id t : encode(part.substr(0, size)))
          if (!piece(t).empty()) pieces.push_back(t);  // no begin and no end
        from += size;
        std::size_t done = 0;
        for (std::size_t n; (n = std::min(length, pieces.size() - done)) == length ||
                            (n && from == text.size());) {
          const auto passage = std::span(pieces).subspan(done, n);
          std::string words;
          for (const token_id t : passage) words += piece(t);
          auto document = words_of(words);
          document.add_boolean_term(name_of(database.get_lastdocid() + 1));
          document.set_data({reinterpret_cast<const char*>(passage.data()), passage.size_bytes()});
          database.add_document(document);
          done += n;
        }
        pieces.erase(pieces.begin(), pieces.begin() + std::ptrdiff_t(done));
      }
    }
    database.commit();
    index_->database = Xapian::Database(place.path, Xapian::DB_BACKEND_GLASS);
    if (index_->database.get_doccount() == 0) throw error(folder, "", "holds no text");
  });
}
passages::~passages() = default;

std::size_t passages::size() const {
  const std::lock_guard turn(index_->turn);
  return index_->database.get_doccount();
}

std::vector<token_id> passages::tokens(std::uint32_t id) const {
  const std::lock_guard turn(index_->turn);
  return indexed(index_->folder, [&] {
    const std::string bytes = index_->database.get_document(id).get_data();
    std::vector<token_id> pieces(bytes.size() / sizeof(token_id));
    std::memcpy(pieces.data(), bytes.data(), bytes.size());
    return pieces;
  });
}

std::vector<std::uint32_t> passages::find(const std::string& query, std::size_t n) const {
  const std::lock_guard turn(index_->turn);
  return indexed(index_->folder, [&] {
    const auto found = index_->search(query_of(query), n);
    std::vector<std::uint32_t> ids;
    for (auto i = found.begin(); i != found.end(); ++i) ids.push_back(*i);
    return ids;
  });
}

std::vector<double> passages::scores(const std::string& query,
                                     std::span<const std::uint32_t> ids) const {
  const std::lock_guard turn(index_->turn);
  return indexed(index_->folder, [&] {
    std::vector<Xapian::Query> these;
    for (const auto id : ids) these.emplace_back(name_of(id));
    const Xapian::Query filter(Xapian::Query::OP_OR, these.begin(), these.end());
    const auto found =
        index_->search({Xapian::Query::OP_FILTER, query_of(query), filter}, ids.size());
    std::vector<double> scores(ids.size());
    for (auto i = found.begin(); i != found.end(); ++i)
      scores[std::size_t(std::find(ids.begin(), ids.end(), *i) - ids.begin())] = i.get_weight();
    return scores;
  });
}

#endif

}  // namespace cli
