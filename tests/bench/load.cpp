// A load generator on Apache Qpid Proton C++: one connection, a sender or a receiver, exact accounting.
//
//   load send    URL[,URL...] ADDRESS COUNT SIZE WINDOW
//   load receive URL[,URL...] ADDRESS COUNT CREDIT
//
// A sender keeps at most WINDOW messages without an outcome. Each body starts with its number. The last line of output is one JSON object: messages
// done, seconds from the first to the last, messages per second; of a sender also the time to confirm (p50, p99 in ms).
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender_options.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class Sender : public proton::messaging_handler {
  public:
    Sender(std::string url, std::string address, long count, size_t size, long window)
        : url_(std::move(url)), address_(std::move(address)), count_(count), size_(size), window_(window) {}

    void on_container_start(proton::container &container) override {
        container.open_sender(url_ + "/" + address_, proton::sender_options().auto_settle(true));
    }

    void on_sendable(proton::sender &sender) override { fill(sender); }

    void on_tracker_accept(proton::tracker &tracker) override {
        if (!starts_.empty()) {
            delays_.push_back(seconds_since(starts_.front()) * 1000);
            starts_.pop_front();
        }
        if (++accepted_ == count_) {
            double seconds = seconds_since(begin_);
            std::sort(delays_.begin(), delays_.end());
            std::printf("{\"sent\": %ld, \"seconds\": %.3f, \"rate\": %.0f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n", accepted_, seconds,
                        accepted_ / seconds, delays_[delays_.size() / 2], delays_[delays_.size() * 99 / 100]);
            std::fflush(stdout);
            tracker.connection().close();
            return;
        }
        proton::sender sender = tracker.sender();
        fill(sender);
    }

    void on_tracker_reject(proton::tracker &tracker) override { fail("a message was rejected: " + address_); }
    void on_error(const proton::error_condition &error) override { fail(error.what()); }

  private:
    void fill(proton::sender &sender) {
        if (sent_ == 0) begin_ = Clock::now();
        while (sent_ < count_ && sent_ - accepted_ < window_ && sender.credit() > 0) {
            std::string body(size_, 'x');
            std::memcpy(&body[0], &sent_, std::min(sizeof(sent_), size_));
            proton::message message;
            message.durable(true);
            message.body(proton::binary(body));
            starts_.push_back(Clock::now());
            sender.send(message);
            ++sent_;
        }
    }

    static void fail(const std::string &text) {
        std::fprintf(stderr, "load: %s\n", text.c_str());
        std::exit(1);
    }

    std::string url_, address_;
    long count_;
    size_t size_;
    long window_;
    long sent_ = 0, accepted_ = 0;
    Clock::time_point begin_;
    std::deque<Clock::time_point> starts_;
    std::vector<double> delays_;
};

class Receiver : public proton::messaging_handler {
  public:
    Receiver(std::string url, std::string address, long count, int credit)
        : url_(std::move(url)), address_(std::move(address)), count_(count), credit_(credit) {}

    void on_container_start(proton::container &container) override {
        container.open_receiver(url_ + "/" + address_, proton::receiver_options().credit_window(credit_));
    }

    void on_message(proton::delivery &delivery, proton::message &) override {
        if (received_++ == 0) begin_ = Clock::now();
        if (received_ == count_) {
            double seconds = seconds_since(begin_);
            std::printf("{\"received\": %ld, \"seconds\": %.3f, \"rate\": %.0f}\n", received_, seconds, received_ / seconds);
            std::fflush(stdout);
            delivery.accept();
            delivery.connection().close();
        }
    }

    void on_error(const proton::error_condition &error) override {
        std::fprintf(stderr, "load: %s\n", error.what().c_str());
        std::exit(1);
    }

  private:
    std::string url_, address_;
    long count_;
    int credit_;
    long received_ = 0;
    Clock::time_point begin_;
};

int main(int argc, char **argv) {
    if (argc == 7 && std::string(argv[1]) == "send") {
        Sender handler(argv[2], argv[3], std::atol(argv[4]), std::atol(argv[5]), std::atol(argv[6]));
        proton::container(handler).run();
    } else if (argc == 6 && std::string(argv[1]) == "receive") {
        Receiver handler(argv[2], argv[3], std::atol(argv[4]), std::atoi(argv[5]));
        proton::container(handler).run();
    } else {
        std::fprintf(stderr, "usage: load send URL ADDRESS COUNT SIZE WINDOW | load receive URL ADDRESS COUNT CREDIT\n");
        return 2;
    }
    return 0;
}
