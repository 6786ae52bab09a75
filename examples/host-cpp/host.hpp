// The reference host in C++17: graphkit/hosts/numpy_host.py, line by line, driven by the header that `graphkit contract`
// writes. It needs the standard library and a little-endian machine; what runs a model is given by the caller.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "contract.h"

namespace host {

using Bytes = std::vector<std::uint8_t>;
using Tensors = std::vector<Bytes>;  // of a method, in the order of its ports
using Ids = std::vector<std::vector<std::int64_t>>;  // tokens of each sequence

// Runs a method on its inputs and returns its outputs.
using Run = std::function<Tensors(const HostMethod& method, const Tensors& inputs)>;

// 0 as an element of a mask is all zero bits; this is the other one.
inline Bytes floor_of(const HostPort& port) {
    const std::string dtype = port.dtype;
    Bytes floor(port.item_bytes);
    if (dtype == "float32") {
        const float number = HOST_MASK_FLOOR;
        std::memcpy(floor.data(), &number, sizeof number);
    } else if (dtype == "float64") {
        const double number = HOST_MASK_FLOOR;
        std::memcpy(floor.data(), &number, sizeof number);
    } else if (dtype == "float16") {
        const std::uint16_t bits = HOST_MASK_FLOOR_HALF;
        std::memcpy(floor.data(), &bits, sizeof bits);
    } else {
        throw std::runtime_error("a mask of dtype " + dtype);
    }
    return floor;
}

// A float16 as a number.
inline double widened(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double sign = bits >> 15 ? -1.0 : 1.0;
    if (exponent == 31) return fraction ? std::nan("") : sign * HUGE_VAL;
    return sign * (exponent ? std::ldexp(fraction + 1024, exponent - 25) : std::ldexp(fraction, -24));
}

// The elements of a tensor.
template <typename Element>
std::vector<Element> elements(const Bytes& bytes) {
    std::vector<Element> found(bytes.size() / sizeof(Element));
    std::memcpy(found.data(), bytes.data(), bytes.size());
    return found;
}

// The elements of a tensor of floats as numbers.
inline std::vector<double> numbers(const Bytes& bytes, const std::string& dtype) {
    std::vector<double> found;
    if (dtype == "float32") {
        for (float number : elements<float>(bytes)) found.push_back(number);
    } else if (dtype == "float64") {
        found = elements<double>(bytes);
    } else if (dtype == "float16") {
        for (std::uint16_t bits : elements<std::uint16_t>(bytes)) found.push_back(widened(bits));
    } else {
        throw std::runtime_error("logits of dtype " + dtype);
    }
    return found;
}

// Repeats masks over the last axis, each in the part of its sequence; counts[i] says whether place i counts.
inline Bytes filled(const std::vector<std::vector<bool>>& counts, const HostPort& port) {
    const Bytes floor = floor_of(port);
    Bytes mask(port.bytes);
    const std::size_t part = port.bytes / port.item_bytes / counts.size();
    for (std::size_t at = 0; at < part * counts.size(); at++) {
        const std::vector<bool>& own = counts[at / part];
        if (!own[at % own.size()]) std::copy(floor.begin(), floor.end(), mask.begin() + at * port.item_bytes);
    }
    return mask;
}

// The slots in use, and last the new token; of a window, the last tokens.
inline std::vector<bool> slots_mask(std::size_t past, std::size_t capacity, std::size_t window) {
    std::vector<bool> counts(capacity + 1, false);
    const std::size_t first = window && past + 1 > window ? past + 1 - window : 0;
    for (std::size_t slot = first; slot < std::min(past, capacity); slot++) counts[slot] = true;
    counts[capacity] = true;
    return counts;
}

// The valid positions of a padded source.
inline std::vector<bool> source_mask(std::size_t valid, std::size_t source) {
    std::vector<bool> counts(source, false);
    std::fill_n(counts.begin(), std::min(valid, source), true);
    return counts;
}

// The SHA-256 of a file, in hexadecimal digits (FIPS 180-4).
inline std::string sha256(std::ifstream& file) {
    static const std::uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::uint32_t sum[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const auto turned = [](std::uint32_t x, int by) { return x >> by | x << (32 - by); };
    std::uint64_t size = 0;
    for (bool is_last = false; !is_last;) {
        std::uint8_t block[128] = {};
        file.read(reinterpret_cast<char*>(block), 64);
        const std::size_t count = static_cast<std::size_t>(file.gcount());
        size += count;
        is_last = count < 64;
        if (is_last) block[count] = 0x80;
        const std::size_t blocks = count < 56 ? 1 : is_last ? 2 : 1;
        for (int i = 0; is_last && i < 8; i++) {
            block[blocks * 64 - 1 - static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(size * 8 >> 8 * i);
        }
        for (std::size_t at = 0; at < blocks * 64; at += 64) {
            std::uint32_t words[64];
            for (std::size_t i = 0; i < 16; i++) {
                const std::uint8_t* four = block + at + 4 * i;
                words[i] = static_cast<std::uint32_t>(four[0]) << 24 | static_cast<std::uint32_t>(four[1]) << 16 |
                           static_cast<std::uint32_t>(four[2]) << 8 | four[3];
            }
            for (std::size_t i = 16; i < 64; i++) {
                const std::uint32_t a = words[i - 15], b = words[i - 2];
                words[i] = words[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + words[i - 7] +
                           (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
            }
            std::uint32_t v[8];
            std::copy(sum, sum + 8, v);
            for (std::size_t i = 0; i < 64; i++) {
                const std::uint32_t one = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) +
                                          ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants[i] + words[i];
                const std::uint32_t other = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) +
                                            ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
                std::copy_backward(v, v + 7, v + 8);
                v[4] += one;
                v[0] = one + other;
            }
            for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
    }
    std::string digits;
    for (int i = 0; i < 64; i++) digits += "0123456789abcdef"[sum[i / 8] >> (28 - i % 8 * 4) & 15];
    return digits;
}

// Checks that files are those that were recorded: by their sizes or, where asked for, by their checksums too; a file
// for people has any size.
inline void check_files(const std::string& folder, bool checksums = false) {
    for (std::size_t i = 0; i < HOST_FILE_COUNT; i++) {
        const HostFile& recorded = HOST_FILES[i];
        const std::string name = recorded.name, suffix = name.substr(name.rfind('.') + 1);
        if (!checksums && (suffix == "md" || suffix == "mjs")) continue;
        std::ifstream file(folder + "/" + name, std::ios::binary | std::ios::ate);
        if (!file) throw std::runtime_error(name + " is missing");
        const auto size = static_cast<std::uint64_t>(file.tellg());
        if (size != recorded.bytes) {
            throw std::runtime_error(name + " has " + std::to_string(size) + " bytes, and the contract records " +
                                     std::to_string(recorded.bytes));
        }
        file.seekg(0);
        if (checksums && sha256(file) != recorded.sha256) throw std::runtime_error(name + " has another SHA-256");
    }
}

// Says, once, that models and tables are not proven.
inline void say_unproven(const std::string& folder) {
    static bool is_said = false;
    if (!HOST_PROVEN && !is_said) std::cerr << folder << ": its proof failed or was not run\n";
    is_said = true;
}

// Whether a user gives a sound, behind which come zeros.
inline bool is_sound(const HostPort& port) { return port.source == HOST_SOURCE_USER && port.by == HOST_BY_SOURCE; }

// Sounds with zeros behind what is valid of each, as long as their port; they may be shorter.
inline Bytes with_zeros(const Bytes& sound, const HostPort& port, const std::vector<std::size_t>& valid) {
    std::size_t most = HOST_SOUND, axis = 1, place = port.item_bytes;
    while (static_cast<std::size_t>(port.dims[axis]) != most) axis++;
    for (std::size_t at = axis + 1; at < port.rank; at++) place *= static_cast<std::size_t>(port.dims[at]);
    const std::size_t length = sound.size() / (port.bytes / most), blocks = port.bytes / (most * place);
    if (length > most || length * (port.bytes / most) != sound.size()) throw std::invalid_argument("a sound is too long");
    Bytes padded(port.bytes);
    for (std::size_t block = 0; block < blocks; block++) {
        const std::size_t count = std::min(length, valid[block * valid.size() / blocks]) * place;
        const auto first = sound.begin() + static_cast<std::ptrdiff_t>(block * length * place);
        std::copy_n(first, count, padded.begin() + static_cast<std::ptrdiff_t>(block * most * place));
    }
    return padded;
}

// Lets scores be minus infinity at tokens that may not follow a prompt and so many others, of at most `steps`.
inline void restrict_to_allowed(std::vector<double>& scores, std::size_t prompt, std::size_t given, std::size_t steps,
                                const std::vector<std::int64_t>& ends) {
    const std::size_t length = prompt + given;
    std::vector<std::int64_t> forced, barred(HOST_SUPPRESS_TOKENS, HOST_SUPPRESS_TOKENS + HOST_SUPPRESS_TOKEN_COUNT);
    if (HOST_FORCED_BOS_TOKEN_ID >= 0 && length == 1) forced = {HOST_FORCED_BOS_TOKEN_ID};
    if (HOST_FORCED_EOS_TOKEN_COUNT && given + 1 == steps) {
        forced.assign(HOST_FORCED_EOS_TOKENS, HOST_FORCED_EOS_TOKENS + HOST_FORCED_EOS_TOKEN_COUNT);
    }
    if (given == (prompt == 1 && HOST_FORCED_BOS_TOKEN_ID >= 0 ? 1u : 0u)) {
        barred.insert(barred.end(), HOST_BEGIN_SUPPRESS_TOKENS, HOST_BEGIN_SUPPRESS_TOKENS + HOST_BEGIN_SUPPRESS_TOKEN_COUNT);
    }
    const auto least = std::max<long long>(HOST_MIN_LENGTH - static_cast<long long>(prompt), HOST_MIN_NEW_TOKENS);
    if (forced.empty()) {
        barred.insert(barred.end(), HOST_BAD_WORDS_TOKENS, HOST_BAD_WORDS_TOKENS + HOST_BAD_WORDS_TOKEN_COUNT);
        if (static_cast<long long>(given) < least) barred.insert(barred.end(), ends.begin(), ends.end());
    } else {
        std::fill(scores.begin(), scores.end(), -HUGE_VAL);
    }
    const auto set = [&scores](std::int64_t token, double score) {
        if (token >= 0 && static_cast<std::size_t>(token) < scores.size()) scores[static_cast<std::size_t>(token)] = score;
    };
    for (std::int64_t token : forced) set(token, 0.0);
    for (std::int64_t token : barred) set(token, -HUGE_VAL);
}

// How many tokens to give behind a prompt: `steps`, or where that is 0 as many as the contract says.
inline std::size_t most_new_tokens(std::size_t steps, std::size_t prompt) {
    const long long longest = HOST_MAX_NEW_TOKENS >= 0 ? HOST_MAX_NEW_TOKENS : HOST_MAX_LENGTH - static_cast<long long>(prompt);
    if (!steps && longest < 1) throw std::invalid_argument("the contract does not say how many tokens to give");
    return steps ? steps : static_cast<std::size_t>(longest);
}

class Host {
public:
    Host(const std::string& folder, Run run, bool checksums = false) : run_(std::move(run)) {
        check_files(folder, checksums);
        say_unproven(folder);
        for (std::size_t i = 0; i < HOST_TABLE_COUNT; i++) tables_.push_back(read(folder, HOST_TABLES[i]));
        for (std::size_t i = 0; i < HOST_STATE_COUNT; i++) state.emplace_back(HOST_STATES[i].bytes, 0);
    }

    std::vector<Bytes> state;   // written in place
    std::size_t position = 0;   // tokens in the cache
    std::vector<std::size_t> valid;  // valid positions of the source of each sequence

    // How many sequences of tokens run at a time.
    static std::size_t batch() { return takes_text() || HOST_POSITIONS ? std::max(1, HOST_BATCH) : 1; }

    // Forgets the state, and runs what runs once for the source of each sequence, none of which has tokens for a
    // decoder-only model; `user` has the inputs that the caller makes, by name. Of a sound, a source is how many samples
    // or frames are valid, or empty for all.
    void start(const Ids& sources, std::map<std::string, Bytes> user = {}) {
        if (sources.size() != batch()) throw std::invalid_argument("there is not one source a sequence");
        for (Bytes& bytes : state) std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
        position = 0;
        const std::size_t length = HOST_SOURCE;
        valid.clear();
        for (const std::vector<std::int64_t>& source : sources) {
            if (takes_text() && (source.empty() || source.size() > length)) {
                throw std::invalid_argument("the source takes 1 to " + std::to_string(length) + " tokens");
            }
            valid.push_back(source.empty() ? length : source.size());
        }
        for (const auto& given : user) {
            if (!is_input(given.first)) throw std::invalid_argument("the models have no input '" + given.first + "'");
        }
        user_ = std::move(user);
        if (HOST_SOUND) take_sound(sources);
        given_.assign(HOST_METHOD_COUNT, {});
        for (std::size_t i = 0; i < HOST_METHOD_COUNT; i++) {
            if (!HOST_METHODS[i].each_step) call(i, sources);
        }
    }

    // Runs one token of each sequence through the decoder and returns their logits.
    const Bytes& step(const std::vector<std::int64_t>& tokens) {
        if (tokens.size() != batch()) throw std::invalid_argument("there is not one token a sequence");
        if (position >= HOST_POSITIONS) throw std::out_of_range("the cache is full");
        Ids ids;
        for (std::int64_t token : tokens) ids.push_back({token});
        for (std::size_t i = 0; i < HOST_METHOD_COUNT; i++) {
            if (HOST_METHODS[i].each_step) call(i, ids);
        }
        position++;
        const auto [method, output] = scores();
        return given_[method][output];
    }

    // The tokens that greedy decoding gives for each sequence by the rules of the contract, at most `steps`, or for 0 as
    // many as these say; prompts may differ in length.
    Ids generate(const Ids& sources, const Ids& prompts, std::size_t steps, const std::vector<std::int64_t>& ends) {
        std::vector<std::size_t> most;
        for (const std::vector<std::int64_t>& prompt : prompts) {
            if (prompt.empty()) throw std::invalid_argument("the prompt is empty");
            const std::size_t room = HOST_POSITIONS < prompt.size() ? 0 : HOST_POSITIONS - prompt.size() + 1;
            most.push_back(std::min(most_new_tokens(steps, prompt.size()), room));
        }
        start(sources);
        Ids found(prompts.size());
        const auto goes_on = [&](std::size_t i) {
            if (found[i].empty()) return true;
            return found[i].size() < most[i] && std::find(ends.begin(), ends.end(), found[i].back()) == ends.end();
        };
        std::vector<std::size_t> places(prompts.size());
        for (std::size_t i = 0; i < places.size(); i++) places[i] = i;
        while (std::any_of(places.begin(), places.end(), goes_on)) {
            const std::size_t at = position;
            std::vector<std::int64_t> next;
            for (std::size_t i = 0; i < prompts.size(); i++) {
                std::vector<std::int64_t> text = prompts[i];
                text.insert(text.end(), found[i].begin(), found[i].end());
                next.push_back(text[std::min(at, text.size() - 1)]);
            }
            step(next);
            for (std::size_t i = 0; i < prompts.size(); i++) {
                if (at + 1 < prompts[i].size() || !goes_on(i)) continue;
                std::vector<double> scores = logits(i);
                restrict_to_allowed(scores, prompts[i].size(), found[i].size(), most[i], ends);
                found[i].push_back(std::max_element(scores.begin(), scores.end()) - scores.begin());
            }
        }
        return found;
    }

private:
    // Fills the sound with zeros, and takes note of how many positions are valid.
    void take_sound(const Ids& sources) {
        long long most = HOST_SOUND, stride = HOST_STRIDE, offset = HOST_OFFSET;
        std::vector<std::size_t> lengths;
        for (std::size_t i = 0; i < sources.size(); i++) {
            long long length = sources[i].empty() ? most : sources[i].front();
            for_sounds([&](const HostPort& port) {
                if (sources[i].empty()) length = static_cast<long long>(user_.at(port.name).size() / (port.bytes / static_cast<std::size_t>(most)));
            });
            if (length < std::max(1LL, stride - offset) || length > most) {
                throw std::invalid_argument("the sound has " + std::to_string(length) + " valid places");
            }
            lengths.push_back(static_cast<std::size_t>(length));
            valid[i] = static_cast<std::size_t>(std::min<long long>((length + offset) / stride, HOST_SOURCE));
        }
        for_sounds([&](const HostPort& port) { user_[port.name] = with_zeros(user_.at(port.name), port, lengths); });
    }

    void for_sounds(const std::function<void(const HostPort&)>& use) const {
        for (std::size_t i = 0; i < HOST_METHOD_COUNT; i++) {
            for (std::size_t at = 0; at < HOST_METHODS[i].input_count; at++) {
                if (is_sound(HOST_METHODS[i].inputs[at])) use(HOST_METHODS[i].inputs[at]);
            }
        }
    }

    // Whether the caller makes an input of this name.
    static bool is_input(const std::string& name) {
        for (std::size_t i = 0; i < HOST_METHOD_COUNT; i++) {
            for (std::size_t at = 0; at < HOST_METHODS[i].input_count; at++) {
                const HostPort& port = HOST_METHODS[i].inputs[at];
                if (port.source == HOST_SOURCE_USER && name == port.name) return true;
            }
        }
        return false;
    }

    // Whether the source is text, rather than an image or a sound.
    static bool takes_text() {
        for (std::size_t i = 0; i < HOST_METHOD_COUNT; i++) {
            const HostMethod& method = HOST_METHODS[i];
            for (std::size_t at = 0; !method.each_step && at < method.input_count; at++) {
                const HostPort& port = method.inputs[at];
                if (port.source == HOST_SOURCE_EMBEDDING && port.by == HOST_BY_SOURCE) return true;
            }
        }
        return false;
    }

    static Bytes read(const std::string& folder, const HostTable& table) {
        std::ifstream file(folder + "/" + table.file, std::ios::binary);
        Bytes rows(table.rows * table.row_bytes);
        file.seekg(static_cast<std::streamoff>(table.offset));
        file.read(reinterpret_cast<char*>(rows.data()), static_cast<std::streamsize>(rows.size()));
        if (!file) throw std::runtime_error(std::string(table.file) + " is missing or too short");
        return rows;
    }

    // The first output of a step that goes to no state: its method and its place there.
    static std::pair<std::size_t, std::size_t> scores() {
        for (std::size_t i = 0; i < HOST_METHOD_COUNT; i++) {
            const HostMethod& method = HOST_METHODS[i];
            for (std::size_t at = 0; method.each_step && at < method.output_count; at++) {
                if (method.outputs[at].writes < 0) return {i, at};
            }
        }
        throw std::logic_error("there is no decoder");
    }

    // The logits of a sequence.
    std::vector<double> logits(std::size_t sequence) const {
        const auto [method, output] = scores();
        const std::vector<double> all = numbers(given_[method][output], HOST_METHODS[method].outputs[output].dtype);
        const auto count = static_cast<std::ptrdiff_t>(all.size() / batch());
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(sequence) * count;
        return {first, first + count};
    }

    void call(std::size_t index, const Ids& ids) {
        const HostMethod& method = HOST_METHODS[index];
        Tensors inputs;
        for (std::size_t i = 0; i < method.input_count; i++) inputs.push_back(input(method.inputs[i], ids));
        given_[index] = run_(method, inputs);
        for (std::size_t i = 0; i < method.output_count; i++) {
            if (given_[index].at(i).size() != method.outputs[i].bytes) throw std::runtime_error("an output has another size");
            if (method.outputs[i].writes >= 0) write(method.outputs[i].writes, given_[index][i]);
        }
    }

    Bytes input(const HostPort& port, const Ids& ids) const {
        switch (port.source) {
            case HOST_SOURCE_STATE: return state[port.of];
            case HOST_SOURCE_OUTPUT: return given_[port.of].at(port.output);
            case HOST_SOURCE_USER: return user_.at(port.name);
            case HOST_SOURCE_SLOTS_MASK: return filled({slots_mask(position, HOST_CAPACITY, port.window)}, port);
            case HOST_SOURCE_SOURCE_MASK: {
                std::vector<std::vector<bool>> counts;
                for (std::size_t length : valid) counts.push_back(source_mask(length, HOST_SOURCE));
                return filled(counts, port);
            }
            default: break;
        }
        const std::size_t count = port.bytes / HOST_TABLES[port.of].row_bytes;
        std::vector<std::int64_t> rows;
        if (port.source == HOST_SOURCE_ROWS) {
            for (std::size_t i = 0; i < count; i++) {
                const std::size_t row = port.by == HOST_BY_POSITION ? position : place(port, ids[i], valid[i]);
                rows.push_back(static_cast<std::int64_t>(row));
            }
        } else {
            for (std::size_t i = 0; i < ids.size(); i++) {
                if (port.by != HOST_BY_TYPE) rows.insert(rows.end(), ids[i].begin(), ids[i].end());
                const std::int64_t pad = port.by == HOST_BY_TYPE || HOST_TOKEN_PAD < 0 ? 0 : HOST_TOKEN_PAD;
                rows.resize((i + 1) * (count / ids.size()), pad);
            }
        }
        return looked_up(port.of, rows);
    }

    // The place of a source that chooses a row: its last token, its largest id, or the first of one token.
    static std::size_t place(const HostPort& port, const std::vector<std::int64_t>& ids, std::size_t length) {
        if (port.by == HOST_BY_LARGEST_ID) {
            return static_cast<std::size_t>(std::max_element(ids.begin(), ids.end()) - ids.begin());
        }
        if (port.by == HOST_BY_FIRST_TOKEN) {
            const auto found = std::find(ids.begin(), ids.end(), HOST_TOKEN_POOLED);
            return found == ids.end() ? 0 : static_cast<std::size_t>(found - ids.begin());
        }
        return length - 1;
    }

    Bytes looked_up(int index, const std::vector<std::int64_t>& rows) const {
        const HostTable& table = HOST_TABLES[index];
        Bytes found;
        for (std::int64_t row : rows) {
            if (row < 0 || static_cast<std::size_t>(row) >= table.rows) {
                throw std::out_of_range("row " + std::to_string(row) + ": table " + table.name + " has " +
                                        std::to_string(table.rows) + " rows");
            }
            const auto first = tables_[index].begin() + row * static_cast<std::ptrdiff_t>(table.row_bytes);
            found.insert(found.end(), first, first + static_cast<std::ptrdiff_t>(table.row_bytes));
        }
        return found;
    }

    // Writes what is new into the next slot, or all of a state that does not grow.
    void write(int index, const Bytes& fresh) {
        const HostState& kept = HOST_STATES[index];
        Bytes& bytes = state[index];
        if (kept.axis < 0) {
            bytes = fresh;
        } else if (position < kept.slots) {
            for (std::size_t block = 0; block < kept.blocks; block++) {
                std::memcpy(bytes.data() + (block * kept.slots + position) * kept.slot_bytes,
                            fresh.data() + block * kept.slot_bytes, kept.slot_bytes);
            }
        }
    }

    Run run_;
    std::vector<Bytes> tables_;
    std::vector<Tensors> given_;  // what each method gave
    std::map<std::string, Bytes> user_;
};

}  // namespace host
