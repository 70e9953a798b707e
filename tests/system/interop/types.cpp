// Every type through Apache Qpid Proton C++:  types HOST:PORT EXCHANGE QUEUE CHOSEN  (see values.py)
#include <proton/codec/encoder.hpp>
#include <proton/codec/map.hpp>
#include <proton/codec/vector.hpp>
#include <proton/connection.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/map.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender.hpp>
#include <proton/source.hpp>
#include <proton/source_options.hpp>
#include <proton/types.hpp>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace codec = proton::codec;

template <class T> static T of_bytes(const std::string &bytes) {
    T made;
    std::memcpy(&made[0], bytes.data(), bytes.size());
    return made;
}

// Small decimals are kept in the machine's order of bytes.
template <class T, class Bits> static T of_bits(Bits bits) {
    return of_bytes<T>(std::string(reinterpret_cast<const char *>(&bits), sizeof bits));
}

static std::vector<std::pair<std::string, proton::value>> values() {
    std::string sixteen, decimal("\x22\x08", 2);
    for (char each = 0; each < 16; each++) sixteen += each;
    std::map<std::string, proton::value> map{{"one", "first"}, {"two", std::vector<proton::value>{"second"}}};
    proton::value list(std::vector<proton::value>{"one", true, std::vector<proton::value>{"nested"}}), described;
    codec::encoder(described) << codec::start::described() << proton::symbol("example:type") << "inner" << codec::finish();
    return {
        {"null", proton::value()},
        {"true", true},
        {"false", false},
        {"ubyte", uint8_t(255)},
        {"ushort", uint16_t(65535)},
        {"uint", UINT32_MAX},
        {"ulong", UINT64_MAX},
        {"byte", int8_t(INT8_MIN)},
        {"short", int16_t(INT16_MIN)},
        {"int", INT32_MIN},
        {"long", INT64_MIN},
        {"float", 0.5f},
        {"double", -0.25},
        {"decimal32", of_bits<proton::decimal32>(uint32_t(0x22f00001))},
        {"decimal64", of_bits<proton::decimal64>(uint64_t(0x2230000000000001))},
        {"decimal128", of_bytes<proton::decimal128>(decimal + std::string(14, '\x01'))},
        {"char", wchar_t(0x2603)},
        {"timestamp", proton::timestamp(1700000000123)},
        {"uuid", of_bytes<proton::uuid>(sixteen)},
        {"binary", proton::binary(std::string("\x00\xff", 2))},
        {"string", "\u2603 and snow"},
        {"symbol", proton::symbol("a-symbol")},
        {"list", list},
        {"map", map},
        {"array", std::vector<int32_t>{1, -2, 3}},
        {"described", described},
        {"large", proton::binary(std::string(3000000, '\xa5'))},
    };
}

class Client : public proton::messaging_handler {
  public:
    Client(std::string url, std::string exchange, std::string queue, std::string chosen)
        : url_(std::move(url)), exchange_(std::move(exchange)), queue_(std::move(queue)), chosen_(std::move(chosen)) {}

    void on_container_start(proton::container &container) override {
        connection_ = container.connect(url_);
        connection_.open_receiver(queue_);
        connection_.open_sender(exchange_);
    }

    void on_sendable(proton::sender &sender) override {
        for (; sent_ < values_.size() && sender.credit(); sent_++) {
            proton::message message(values_[sent_].second);
            message.durable(true);
            message.priority(7);
            message.id("the id");
            message.correlation_id("the question");
            message.group_id("a group");
            message.group_sequence(3);
            message.subject("a subject");
            message.reply_to("answers");
            message.content_type("text/x-made-up");
            message.properties().put("name", values_[sent_].first);
            sender.send(message);
        }
    }

    void on_message(proton::delivery &delivery, proton::message &message) override {
        std::string name = proton::get<std::string>(message.properties().get("name"));
        if (delivery.receiver().source().address() == chosen_) {
            std::printf("{\"same\": [%s], \"chosen\": [\"%s\"]}\n", same_.c_str(), name.c_str());
            connection_.close();
            return;
        }
        bool header = message.durable() && message.priority() == 7 && message.id() == proton::message_id("the id") &&
                      message.correlation_id() == proton::message_id("the question") && message.group_id() == "a group" &&
                      message.group_sequence() == 3 && message.subject() == "a subject" && message.reply_to() == "answers" &&
                      message.content_type() == "text/x-made-up";
        if (header && name == values_[came_].first && message.body() == values_[came_].second) {
            same_ += (same_.empty() ? "\"" : ", \"") + name + "\"";
        } else {
            std::fprintf(stderr, "client: %s\n", name.c_str());
        }
        if (++came_ == values_.size()) {
            proton::source_options source;
            proton::source::filter_map filters;
            proton::value selector;
            codec::encoder(selector) << codec::start::described() << proton::symbol("apache.org:selector-filter:string")
                                     << "name = 'uuid'" << codec::finish();
            filters.put("selector", selector);
            source.filters(filters);
            connection_.open_receiver(chosen_, proton::receiver_options().source(source));
        }
    }

  private:
    std::string url_, exchange_, queue_, chosen_, same_;
    proton::connection connection_;
    std::vector<std::pair<std::string, proton::value>> values_ = values();
    std::size_t sent_ = 0, came_ = 0;
};

int main(int, char **argv) {
    Client client(argv[1], argv[2], argv[3], argv[4]);
    proton::container(client).run();
    return 0;
}
