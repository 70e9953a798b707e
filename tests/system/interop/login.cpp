// A client on Apache Qpid Proton C++ that logs in over TLS:
//   login HOST:PORT MECHANISM USER SECRET AUTHORITY CERTIFICATE KEY
//
// A mechanism takes of the words what it needs. It prints `open` when it is let in, and stays until its standard input ends;
// `refused` when it is not.
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/error_condition.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/ssl.hpp>
#include <proton/transport.hpp>

#include <cstdio>
#include <string>

class Client : public proton::messaging_handler {
  public:
    explicit Client(char **argv) : argv_(argv) {}

    void on_container_start(proton::container &container) override {
        const std::string mechanism = argv_[2], authority = argv_[5];
        proton::connection_options options;
        options.sasl_enabled(true).sasl_allowed_mechs(mechanism);
        if (mechanism == "EXTERNAL") {
            proton::ssl_certificate own(argv_[6], argv_[7]);
            options.ssl_client_options(proton::ssl_client_options(own, authority, proton::ssl::VERIFY_PEER));
        } else {
            options.ssl_client_options(proton::ssl_client_options(authority, proton::ssl::VERIFY_PEER));
            if (mechanism != "ANONYMOUS") options.user(argv_[3]).password(argv_[4]);
        }
        container.connect(std::string("amqps://") + argv_[1], options);
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

    char **argv_;
};

int main(int, char **argv) {
    Client client(argv);
    proton::container(client).run();
    return 0;
}
