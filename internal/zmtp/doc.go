// Package zmtp speaks ZeroMQ's wire protocol, ZMTP 3.0 without encryption
// (https://rfc.zeromq.org/spec/23), over a connection that the caller provides: as much of it as cache
// events of engines need, which are sockets of the types PUB, SUB, ROUTER and DEALER. A caller can thus
// use its own dialer, tunnel and deadlines, and memory stays bounded: a message above the limit ends
// the connection before its memory is allocated.
//
// Read conn.go for the protocol and publisher.go for the sending side.
package zmtp
