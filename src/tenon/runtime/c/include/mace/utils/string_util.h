// Texts: from values, tables, parts of texts.

#ifndef MACE_UTILS_STRING_UTIL_H_
#define MACE_UTILS_STRING_UTIL_H_

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

namespace mace {
namespace string_util {

inline void MakeStringInternal(std::stringstream &) {}

template <typename T, typename... Args>
inline void MakeStringInternal(std::stringstream &stream, const T &first, const Args &... rest) {
  stream << first;
  MakeStringInternal(stream, rest...);
}

class StringFormatter {
 public:
  // Rows of right-aligned columns under a title and a header, between lines of dashes.
  static std::string Table(const std::string &title, const std::vector<std::string> &header,
                           const std::vector<std::vector<std::string>> &data) {
    if (header.empty()) return std::string();
    std::vector<std::size_t> widths;
    std::size_t total = 1;
    for (std::size_t column = 0; column < header.size(); ++column) {
      std::size_t width = header[column].size();
      for (const auto &row : data)
        if (column < row.size()) width = std::max(width, row[column].size());
      widths.push_back(width);
      total += width + 3;
    }
    const std::string line(total, '-');
    std::stringstream stream;
    stream << line << '\n'
           << std::right << std::setw(static_cast<int>(total / 2 + title.size() / 2)) << title << '\n'
           << line << '\n';
    AddRow(stream, widths, header);
    stream << line << '\n';
    for (const auto &row : data) AddRow(stream, widths, row);
    stream << line << '\n';
    return stream.str();
  }

 private:
  static void AddRow(std::stringstream &stream, const std::vector<std::size_t> &widths,
                     const std::vector<std::string> &cells) {
    stream << '|';
    for (std::size_t column = 0; column < widths.size(); ++column)
      stream << ' ' << std::right << std::setw(static_cast<int>(widths[column]))
             << (column < cells.size() ? cells[column] : std::string()) << " |";
    stream << '\n';
  }
};

}  // namespace string_util

template <typename... Args>
std::string MakeString(const Args &... args) {
  std::stringstream stream;
  string_util::MakeStringInternal(stream, args...);
  return stream.str();
}

template <typename T>
std::string MakeListString(const T *values, std::size_t size) {
  std::stringstream stream;
  stream << '[';
  for (std::size_t i = 0; i < size; ++i) stream << (i > 0 ? ", " : "") << values[i];
  stream << ']';
  return stream.str();
}

template <typename T>
std::string MakeString(const std::vector<T> &values) {
  return MakeListString(values.data(), values.size());
}

inline std::string MakeString(const char *text) { return std::string(text); }

inline std::string ToLower(const std::string &text) {
  std::string result(text);
  for (auto &c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

inline std::string ToUpper(const std::string &text) {
  std::string result(text);
  for (auto &c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

// Exclusive or with the bytes of a key; twice gives the text back.
inline std::string ObfuscateString(const std::string &text, const std::string &key) {
  std::string result(text);
  for (std::size_t i = 0; i < result.size() && !key.empty(); ++i)
    result[i] = static_cast<char>(result[i] ^ key[i % key.size()]);
  return result;
}

inline std::string ObfuscateString(const std::string &text) {
  return ObfuscateString(text, "Mobile-AI-Compute-Engine");
}

// The text with letters, digits and underscores behind the first character replaced, by their places: as MACE's
// converter obfuscates names.  Capitals count from 4 on, as there.
inline std::string ObfuscateSymbol(const std::string &text) {
  static const char table[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  std::string result(text);
  for (std::size_t i = 1; i < text.size(); ++i) {
    const char c = text[i];
    std::size_t number = 0;
    if (c >= '0' && c <= '9') number = static_cast<std::size_t>(c - '0');
    else if (c >= 'a' && c <= 'z') number = static_cast<std::size_t>(c - 'a') + 10;
    else if (c >= 'A' && c <= 'Z') number = static_cast<std::size_t>(c - 'A') + 4;
    else if (c == '_') number = 62;
    else continue;
    result[i] = table[(number + i + 31) % (sizeof table - 1)];
  }
  return result;
}

#ifdef MACE_OBFUSCATE_LITERALS
#define MACE_OBFUSCATE_STRING(str) ObfuscateString(str)
#define MACE_OBFUSCATE_SYMBOL(str) ObfuscateSymbol(str)
#else
#define MACE_OBFUSCATE_STRING(str) (str)
#define MACE_OBFUSCATE_SYMBOL(str) (str)
#endif

// Without an empty part at the end.
inline std::vector<std::string> Split(const std::string &text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

inline void StripString(std::string *text) {
  static const char blanks[] = " \t\f\v\n\r";
  const std::size_t begin = text->find_first_not_of(blanks);
  if (begin == std::string::npos) text->clear();
  else *text = text->substr(begin, text->find_last_not_of(blanks) - begin + 1);
}

// The word that follows a pattern; "" if there is none.
inline std::string GetStrAfterPattern(const std::string &text, const std::string &pattern) {
  static const char blanks[] = " \t\f\v\n\r";
  const std::size_t found = text.find(pattern);
  if (found == std::string::npos) return std::string();
  const std::size_t begin = text.find_first_not_of(blanks, found + pattern.size());
  if (begin == std::string::npos) return std::string();
  return text.substr(begin, text.find_first_of(blanks, begin) - begin);
}

}  // namespace mace

#endif  // MACE_UTILS_STRING_UTIL_H_
