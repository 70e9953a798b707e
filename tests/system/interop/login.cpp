// A client on Apache Qpid Proton C++ that logs in:  login HOST:PORT MECHANISM [USER PASSWORD]
//
// It prints `open` when it is let in, and stays until its standard input ends; `refused` when it is not.
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/error_condition.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/transport.hpp>

#include <cstdio>
#include <string>

class Client : public proton::messaging_handler {
  public:
    Client(int argc, char **argv) : argc_(argc), argv_(argv) {}

    void on_container_start(proton::container &container) override {
        proton::connection_options options;
        options.sasl_enabled(true).sasl_allowed_mechs(argv_[2]).sasl_allow_insecure_mechs(true);
        if (argc_ == 5) options.user(argv_[3]).password(argv_[4]);
        container.connect(std::string("amqp://") + argv_[1], options);
    }

    void on_connection_open(proton::connection &connection) override {
        say("open");
        while (std::getchar() != EOF) {}
        connection.close();
    }

    void on_transport_error(proton::transport &) override { say("refused"); }

  private:
    void say(const char *word) {
        std::puts(word);
        std::fflush(stdout);
    }

    int argc_;
    char **argv_;
};

int main(int argc, char **argv) {
    Client client(argc, argv);
    proton::container(client).run();
    return 0;
}
