// A client on Apache Qpid Proton C++ that logs in over TLS, once for each line of its standard input:
//   HOST:PORT MECHANISM USER SECRET AUTHORITY CERTIFICATE KEY
//
// A mechanism takes of the words what it needs. It prints `open` when it is let in, and stays until there is an empty line;
// `refused` when it is not.
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/error_condition.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/ssl.hpp>
#include <proton/transport.hpp>

#include <iostream>
#include <sstream>
#include <string>
#include <utility>

class Client : public proton::messaging_handler {
  public:
    explicit Client(std::string line) : line_(std::move(line)) {}

    void on_container_start(proton::container &container) override {
        std::string address, mechanism, user, secret, authority, certificate, key;
        std::istringstream(line_) >> address >> mechanism >> user >> secret >> authority >> certificate >> key;
        proton::connection_options options;
        options.sasl_enabled(true).sasl_allowed_mechs(mechanism);
        if (mechanism == "EXTERNAL") {
            proton::ssl_certificate own(certificate, key);
            options.ssl_client_options(proton::ssl_client_options(own, authority, proton::ssl::VERIFY_PEER));
        } else {
            options.ssl_client_options(proton::ssl_client_options(authority, proton::ssl::VERIFY_PEER));
            if (mechanism != "ANONYMOUS") options.user(user).password(secret);
        }
        container.connect("amqps://" + address, options);
    }

    void on_connection_open(proton::connection &connection) override {
        say("open");
        std::string rest;
        std::getline(std::cin, rest);
        connection.close();
    }

    void on_transport_error(proton::transport &) override { say("refused"); }

  private:
    void say(const char *word) {
        if (!said_) std::cout << word << std::endl;
        said_ = true;
    }

    std::string line_;
    bool said_ = false;
};

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        Client client(line);
        proton::container(client).run();
    }
    return 0;
}
