// A client on Apache Qpid Proton C++ that outlives its broker:  client send|receive URL,URL,... ADDRESS COUNT
//
// A sender numbers its messages and sends a few of them every few milliseconds; what has no outcome when the connection drops, it
// sends again over the next one. A receiver counts the different numbers that come. Both print their count whenever it has grown, and
// end when it is COUNT.
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/reconnect_options.hpp>
#include <proton/sender.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/work_queue.hpp>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <set>
#include <sstream>
#include <string>
#include <vector>

static std::vector<std::string> split(const std::string &text) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

class Client : public proton::messaging_handler {
  public:
    Client(bool sends, const std::string &urls, std::string address, long count)
        : sends_(sends), urls_(split(urls)), address_(std::move(address)), count_(count) {}

    void on_container_start(proton::container &container) override {
        std::vector<std::string> others(urls_.begin() + 1, urls_.end());
        auto reconnect = proton::reconnect_options().delay(proton::duration(10)).max_delay(proton::duration(100));
        auto options = proton::connection_options().reconnect(reconnect).failover_urls(others);
        proton::connection connection = container.connect(urls_[0], options);
        if (sends_) {
            sender_ = connection.open_sender(address_);
            work_ = &sender_.work_queue();
        } else {
            connection.open_receiver(address_, proton::receiver_options().credit_window(100));
        }
    }

    void on_connection_open(proton::connection &) override {
        if (!sends_) return;
        again_.insert(again_.end(), unsettled_.begin(), unsettled_.end());
        unsettled_.clear();
        if (!ticking_) tick();
    }

    void on_transport_close(proton::transport &) override { open_ = false; }
    void on_sender_open(proton::sender &) override { open_ = true; }

    void on_tracker_accept(proton::tracker &tracker) override {
        std::string tag = tracker.tag();
        unsettled_.erase(std::atol(tag.c_str()));
        count(std::atol(tag.c_str()));
        if (done()) tracker.connection().close();
    }

    void on_message(proton::delivery &delivery, proton::message &message) override {
        count(proton::get<int64_t>(message.body()));
        delivery.accept();
        if (done()) delivery.connection().close();
    }

    void on_error(const proton::error_condition &error) override {
        std::fprintf(stderr, "client: %s\n", error.what().c_str());
        if (error.name() != "proton:io") std::exit(1);
    }
    void on_transport_error(proton::transport &) override {}

  private:
    void tick() {
        ticking_ = true;
        for (int burst = 0; open_ && burst < 5 && sender_.credit() > 0; ++burst) {
            long number;
            if (!again_.empty()) {
                number = again_.front();
                again_.pop_front();
            } else if (next_ < count_) {
                number = next_++;
            } else {
                break;
            }
            unsettled_.insert(number);
            proton::message message{proton::value{int64_t(number)}};
            message.durable(true);
            sender_.send(message, proton::binary(std::to_string(number)));
        }
        if (!done()) work_->schedule(proton::duration(3), [this]() { tick(); });
    }

    void count(long number) {
        if (seen_.insert(number).second) {
            std::printf("%zu\n", seen_.size());
            std::fflush(stdout);
        }
    }

    bool done() const { return long(seen_.size()) == count_; }

    bool sends_, open_ = false, ticking_ = false;
    std::vector<std::string> urls_;
    std::string address_;
    long count_, next_ = 0;
    proton::sender sender_;
    proton::work_queue *work_ = nullptr;
    std::deque<long> again_;
    std::set<long> unsettled_, seen_;
};

int main(int argc, char **argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: client send|receive URL,URL,... ADDRESS COUNT\n");
        return 2;
    }
    Client client(std::string(argv[1]) == "send", argv[2], argv[3], std::atol(argv[4]));
    proton::container(client).run();
    return 0;
}
