// Runs the host on recorded outputs instead of models, and writes down all that it feeds: the test of the port.
//
//     c++ -std=c++17 -I FOLDER replay.cpp -o replay      # FOLDER has contract.h
//     replay FOLDER RECORDED FED STEPS PROMPT [SOURCE...] # prints the tokens; a SOURCE is 12,7,2
//
// RECORDED has the bytes of all outputs in the order of the runs; FED gets the bytes of all inputs, and at the end those
// of all states.

#include <iostream>
#include <sstream>

#include "host.hpp"

int main(int count, char** words) {
    if (count < 6) {
        std::cerr << "replay FOLDER RECORDED FED STEPS PROMPT [SOURCE...]\n";
        return 2;
    }
    std::ifstream recorded(words[2], std::ios::binary);
    std::ofstream fed(words[3], std::ios::binary);
    const auto append = [&fed](const host::Bytes& bytes) {
        fed.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    };
    const auto replay = [&](const HostMethod& method, const host::Tensors& inputs) {
        for (const host::Bytes& bytes : inputs) append(bytes);
        host::Tensors outputs;
        for (std::size_t i = 0; i < method.output_count; i++) {
            host::Bytes bytes(method.outputs[i].bytes);
            recorded.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
            if (!recorded) throw std::runtime_error("there are more runs than were recorded");
            outputs.push_back(std::move(bytes));
        }
        return outputs;
    };
    try {
        host::Ids sources(host::Host::batch());
        for (int i = 6; i < count; i++) {
            std::stringstream tokens(words[i]);
            for (std::string token; std::getline(tokens, token, ',');) {
                sources.at(static_cast<std::size_t>(i) - 6).push_back(std::stoll(token));
            }
        }
        host::Host host(words[1], replay);
        const host::Ids prompts(host::Host::batch(), {std::stoll(words[5])});
        const std::vector<std::int64_t> ends(HOST_END_TOKENS, HOST_END_TOKENS + HOST_END_TOKEN_COUNT);
        for (const auto& tokens : host.generate(sources, prompts, std::stoull(words[4]), ends)) {
            for (std::int64_t token : tokens) std::cout << token << "\n";
        }
        for (const host::Bytes& bytes : host.state) append(bytes);
    } catch (const std::exception& error) {
        std::cerr << "Error: " << error.what() << "\n";
        return 1;
    }
    return 0;
}
